"""A broker's registration: register an incarnation, wait to be unfenced, send heartbeats, request a controlled shutdown.

The channel finds the active controller and repeats requests for a while. Here it is decided what a refusal means: some end by waiting,
such as the session of a previous incarnation of this broker, others never do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import NodeId, Uuid
from headrace.broker.channels.controller_channel import ControllerChannel
from headrace.metadata.image import Endpoint
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from headrace.replication.directories import Directories, StorageFailed

log = logging.getLogger(__name__)

RETRY_S = 0.05
REGISTRATION_RETRY_S = 0.2
LOGGED_AGAIN_S = 10.0  # interval between log lines about the same reason to wait
CONTROLLED_SHUTDOWN_S_MAX = 30.0
NO_CONTROLLER_S_MAX = 8.0  # longer than an election of the quorum takes
# Refusals of a registration that end by themselves.
_PASSING = frozenset(
    {
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
# Refusals of a heartbeat after which this broker must register again.
_NOT_REGISTERED = frozenset({ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED})


class BrokerIdentity(Struct, frozen=True):
    """What a broker registers itself as."""

    node_id: NodeId
    cluster_id: str
    incarnation_id: Uuid  # new for each start of the process
    rack: str | None
    features: Mapping[str, tuple[int, int]]  # supported range of levels by name


class HeartbeatTimes(Struct, frozen=True):
    interval_s: float
    failure_timeout_s: float  # how long a failed directory may stay unreported before the node stops
    registration_timeout_s: float  # how long a starting broker tries to register before the start fails


class Registration:
    """Registers this broker and sends its heartbeats.

    `give_up` is called if a failed directory could not be reported to the controller for `failure_timeout_s`.
    """

    def __init__(
        self,
        channel: ControllerChannel,
        identity: BrokerIdentity,
        times: HeartbeatTimes,
        endpoints: Callable[[], Sequence[Endpoint]],
        directories: Directories,
        metadata_offset: Callable[[], int],
        give_up: Callable[[StorageFailed], None],
    ) -> None:
        self._channel = channel
        self._identity = identity
        self._times = times
        self._endpoints = endpoints
        self._directories = directories
        self._metadata_offset = metadata_offset
        self._give_up = give_up
        self._reported_offline: set[Uuid] = set()
        self._unreported_since_s: float | None = None
        self._urgent = asyncio.Event()
        self._leaving = False
        self.broker_epoch = -1
        self.fenced = True

    async def register_at_start(self, previous_broker_epoch: int) -> None:
        """Register, waiting for controllers and for the session of a previous incarnation to end.

        Raise the last error after `registration_timeout_s`, and at once if waiting cannot help.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._times.registration_timeout_s
        logged_s = -LOGGED_AGAIN_S
        while True:
            try:
                await self.register(previous_broker_epoch)
                return
            except (OSError, HeadraceError) as error:
                passing = error.code in _PASSING if isinstance(error, KafkaError) else True
                if not passing or loop.time() + REGISTRATION_RETRY_S >= deadline:
                    raise
                if loop.time() - logged_s >= LOGGED_AGAIN_S:
                    logged_s = loop.time()
                    log.warning(
                        "broker %d is not registered yet: %s; trying again for %.0f s (initial.broker.registration.timeout.ms)",
                        self._identity.node_id,
                        error,
                        deadline - loop.time(),
                    )
            await asyncio.sleep(REGISTRATION_RETRY_S)

    async def register(self, previous_broker_epoch: int) -> None:
        """Register with the controller and store the broker epoch. Raise KafkaError if the controller refuses.

        `previous_broker_epoch` proves that the last shutdown was clean; -1 means that it was not.
        """
        response: BrokerRegistrationResponse = await self._channel.request(
            BrokerRegistrationRequest(
                broker_id=self._identity.node_id,
                cluster_id=self._identity.cluster_id,
                incarnation_id=self._identity.incarnation_id,
                listeners=[
                    BrokerRegistrationRequest.Listener(
                        name=endpoint.name,
                        host=endpoint.host,
                        port=endpoint.port,
                        security_protocol=endpoint.security_protocol,
                    )
                    for endpoint in self._endpoints()
                ],
                features=[
                    BrokerRegistrationRequest.Feature(name=name, min_supported_version=low, max_supported_version=high)
                    for name, (low, high) in sorted(self._identity.features.items())
                ],
                rack=self._identity.rack,
                log_dirs=self._directories.online_ids(),
                previous_broker_epoch=previous_broker_epoch,
            )
        )
        if response.error_code != ErrorCode.NONE:
            raise self._refusal(ErrorCode(response.error_code))
        self.broker_epoch = response.broker_epoch
        self.fenced = True

    def _refusal(self, code: ErrorCode) -> KafkaError:
        node_id, cluster_id = self._identity.node_id, self._identity.cluster_id
        why = {
            ErrorCode.INCONSISTENT_CLUSTER_ID: (
                f"the controllers belong to another cluster than the log.dirs of this broker, which were formatted for cluster"
                f" {cluster_id}: check controller.quorum.voters, controller.quorum.bootstrap.servers and log.dirs"
            ),
            ErrorCode.DUPLICATE_BROKER_REGISTRATION: (
                f"another process with node.id={node_id} has a session, or had one until a moment ago"
            ),
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
                "the user of this broker may not act as a broker: make it one of super.users, or allow it ClusterAction"
            ),
        }.get(code, "see the log of the active controller")
        return KafkaError(code, f"the controller refused to register broker {node_id}: {why}")

    async def become_active(self) -> None:
        """Send heartbeats until the controller has unfenced this broker."""
        while self.fenced:
            await self._heartbeat()
            if self.fenced:
                await asyncio.sleep(RETRY_S)

    async def run(self) -> None:
        """Send heartbeats until cancelled, and register again whenever the controller refuses one."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), self._times.interval_s)
            self._urgent.clear()
            try:
                await self._heartbeat()
            except KafkaError as error:
                if error.code in _NOT_REGISTERED:
                    log.warning("the controller refused a heartbeat of this broker (%s); registering again", error)
                    await self._again()
                else:
                    log.warning("the controller refused a heartbeat of this broker: %s", error)
            except (OSError, HeadraceError) as error:
                log.warning("a heartbeat of this broker did not reach a controller: %s; sending the next one", error)
            self._check_reported()

    def _check_reported(self) -> None:
        """Give up if a failed directory has been unreported for longer than the failure timeout.

        Until the controller knows of the failure, it elects no other leader for the partitions in that directory.
        """
        now_s = asyncio.get_running_loop().time()
        if self._reported_offline.issuperset(self._directories.offline_ids()):
            self._unreported_since_s = None
        elif self._unreported_since_s is None:
            self._unreported_since_s = now_s
        elif now_s - self._unreported_since_s > self._times.failure_timeout_s:
            self._give_up(
                StorageFailed(
                    f"a failed log directory could not be reported to the controller for"
                    f" {self._times.failure_timeout_s:.0f} s (log.dir.failure.timeout.ms)"
                )
            )

    def heartbeat_now(self) -> None:
        """Send the next heartbeat now, because there is something to report."""
        self._urgent.set()

    async def _again(self) -> None:
        try:
            await self.register(self.broker_epoch)
            await self.become_active()
        except (OSError, HeadraceError) as error:
            log.warning("this broker could not register again: %s; trying again after the next heartbeat", error)

    async def leave(self) -> None:
        """Request a controlled shutdown and wait until the controller has moved leadership away.

        The controller agrees when the other brokers know the new leaders. Return after `CONTROLLED_SHUTDOWN_S_MAX` even if it has
        not, and earlier if no controller responds: the last nodes of a cluster that is stopped have none.
        """
        self._leaving = True  # also in the regular heartbeats, one of which would otherwise unfence this broker again
        deadline = asyncio.get_running_loop().time() + CONTROLLED_SHUTDOWN_S_MAX
        pause_s = 0.0  # a node alone need not wait for others
        while asyncio.get_running_loop().time() < deadline:
            try:
                async with asyncio.timeout(NO_CONTROLLER_S_MAX):
                    response = await self._heartbeat()
            except TimeoutError:
                log.warning(
                    "no controller responded to the shutdown of this broker within %.0f s; stopping anyway",
                    NO_CONTROLLER_S_MAX,
                )
                return
            if response.should_shut_down:
                return
            await asyncio.sleep(pause_s)
            pause_s = RETRY_S
        log.warning(
            "the controller did not move leadership away from this broker within %.0f s; stopping anyway",
            CONTROLLED_SHUTDOWN_S_MAX,
        )

    async def _heartbeat(self) -> BrokerHeartbeatResponse:
        offline = self._directories.offline_ids()
        response: BrokerHeartbeatResponse = await self._channel.request(
            BrokerHeartbeatRequest(
                broker_id=self._identity.node_id,
                broker_epoch=self.broker_epoch,
                current_metadata_offset=self._metadata_offset(),
                want_shut_down=self._leaving,
                offline_log_dirs=offline,
                cordoned_log_dirs=self._directories.cordoned_ids(),
            )
        )
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(response.error_code), "heartbeat")
        self.fenced = response.is_fenced
        self._reported_offline.update(offline)
        return response
