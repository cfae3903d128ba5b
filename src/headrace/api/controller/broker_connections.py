"""Finds out which brokers are dead: those that lost their connection to the active controller, and all when a controller takes over.

A process that is gone closes its connections, and its listener refuses new ones. A broker that is only slow or cut off does neither;
its session ends in time. A new active controller has no connections yet, so it probes every broker once: the node that was the active
controller before is probably gone, and its broker with it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from headrace.base.clock import Clock
from headrace.controller.fast_fencing import FenceDeadBroker
from headrace.metadata.image import Broker, Endpoint
from headrace.server.context import Peer

log = logging.getLogger(__name__)

REFUSALS = 2  # refused probes in a row after which a process counts as gone
PROBES_MAX = 12  # a probe without an outcome says nothing: this node or the network may be busy
PROBE_PAUSE_S = 0.05
PROBE_S_MAX = 0.07  # two probes and the pause together take less than 200 ms
PROBED_AT_ONCE_MAX = 50  # brokers that are probed at the same time


class Outcome(Enum):
    """What a probe of a listener has found."""

    ACCEPTED = auto()
    REFUSED = auto()
    UNKNOWN = auto()


class BrokerConnections:
    """Reports dead brokers to `report`.

    `find` returns a broker that is registered and not fenced, or None, which is also the answer of a controller that does not lead.
    `listener` names the listener that is probed; a broker without it is probed at its first one.
    """

    def __init__(
        self,
        find: Callable[[int], Broker | None],
        report: Callable[[FenceDeadBroker], None],
        listener: str,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._find = find
        self._report = report
        self._listener = listener
        self._clock = clock
        self._loop = loop
        self._probing: dict[int, asyncio.Task[None]] = {}  # at most one task per broker
        self._slots = asyncio.Semaphore(PROBED_AT_ONCE_MAX)
        self._stopped = False

    def watch(self, peer: Peer, broker_id: int) -> None:
        """Probe the broker when the connection from which it has sent a heartbeat is lost."""
        if peer.on_lost is None and not peer.authority.is_own_node:
            peer.on_lost = partial(self.probe, broker_id)

    def stop(self) -> None:
        """Stop probing: connections that are lost from now on are closed by this node itself."""
        self._stopped = True
        for task in self._probing.values():
            task.cancel()

    def probe(self, broker_id: int) -> None:
        """Report the broker if it is registered, not fenced, and its listener refuses connections."""
        if self._stopped or broker_id in self._probing:
            return
        broker = self._find(broker_id)
        if broker is not None and broker.endpoints:
            task = self._loop.create_task(self._probe(broker))
            self._probing[broker_id] = task
            task.add_done_callback(lambda _: self._probing.pop(broker_id, None))

    async def _probe(self, broker: Broker) -> None:
        endpoint = broker.endpoint(self._listener) or broker.endpoints[0]
        async with self._slots:
            if not await self._is_gone(endpoint):
                return
        log.warning(
            "broker %d has no connection to this controller, and %s:%d refuses new ones: its process is gone; fencing it at once",
            broker.id,
            endpoint.host,
            endpoint.port,
        )
        # A heartbeat that was decided during the probes is the last one that had arrived before the connection was lost.
        self._report(FenceDeadBroker(broker.id, broker.epoch, self._clock.now_ms()))

    async def _is_gone(self, endpoint: Endpoint) -> bool:
        """Return whether the listener refuses connections; False as soon as it accepts one, or if that cannot be found out."""
        refusals = 0
        for probe in range(PROBES_MAX):
            if probe:
                await asyncio.sleep(PROBE_PAUSE_S)
            match await self._probe_once(endpoint):
                case Outcome.ACCEPTED:
                    return False
                case Outcome.REFUSED:
                    refusals += 1
                case Outcome.UNKNOWN:
                    refusals = 0
            if refusals == REFUSALS:
                return True
        return False

    async def _probe_once(self, endpoint: Endpoint) -> Outcome:
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                transport, _ = await self._loop.create_connection(asyncio.Protocol, endpoint.host, endpoint.port)
        except OSError as error:  # also a timeout
            return Outcome.REFUSED if _is_refusal(error) else Outcome.UNKNOWN
        transport.abort()
        return Outcome.ACCEPTED


def _is_refusal(error: OSError) -> bool:
    """Return whether every address of the host refused the connection; asyncio joins several errors in one text."""
    if isinstance(error, ConnectionRefusedError):
        return True
    text = str(error)
    return text.startswith("Multiple exceptions") and text.count("[Errno ") == text.count(
        f"[Errno {errno.ECONNREFUSED}]"
    )
