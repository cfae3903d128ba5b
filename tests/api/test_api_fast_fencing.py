"""Fast fencing: a broker whose connection is lost is fenced at once only if its listener refuses connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from tests.controller.controller_harness import ControllerHarness
from tests.fakes import FakeClock

from headrace.api.controller import broker_connections
from headrace.api.controller.broker_connections import (
    PROBE_PAUSE_S,
    PROBE_S_MAX,
    REFUSALS,
    BrokerConnections,
    Outcome,
)
from headrace.base.ids import Uuid
from headrace.controller.fast_fencing import FenceDeadBroker
from headrace.metadata.image import Broker, Endpoint
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.server.authority import ALLOW_ALL, OWN_NODE
from headrace.server.context import Peer

HOST = "127.0.0.1"


class Watcher:
    """The connections of broker 7, whose listener is at `port`, and what was reported about it."""

    def __init__(self, port: int, host: str = HOST) -> None:
        endpoints = (Endpoint("OUTER", HOST, 1, 0), Endpoint("INNER", host, port, 0))
        self.broker: Broker | None = Broker(
            id=7, epoch=3, incarnation_id=Uuid(bytes(16)), endpoints=endpoints, features={}, rack=None, fenced=False,
            in_controlled_shutdown=False, log_dirs=(),
        )  # fmt: skip
        self.reports: list[FenceDeadBroker] = []
        self.connections = BrokerConnections(
            lambda broker_id: self.broker,
            self.reports.append,
            "INNER",
            FakeClock(500),
            asyncio.get_running_loop(),
        )
        self.peer = Peer("CONTROLLER", HOST, authority=ALLOW_ALL)
        self.connections.watch(self.peer, 7)

    async def lose_connection(self) -> None:
        assert self.peer.on_lost is not None
        self.peer.on_lost()
        await probes()


async def probes() -> None:
    """Wait until all probes have ended."""
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)


class RefusedPort:
    """A port that refuses connections, and that no other process can take, until `open` is called."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind((HOST, 0))  # not listening
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> RefusedPort:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def open(self) -> None:
        self._socket.listen()


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a probe take as long as it needs: one that times out is no refusal."""
    monkeypatch.setattr(broker_connections, "PROBE_S_MAX", 20.0)


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


def test_a_dead_broker_is_found_in_less_than_200_ms() -> None:
    assert REFUSALS * PROBE_S_MAX + (REFUSALS - 1) * PROBE_PAUSE_S < 0.2


@pytest.mark.parametrize("host", [HOST, "localhost"])
def test_a_broker_whose_listener_refuses_connections_is_reported(host: str) -> None:
    async def work() -> None:
        with RefusedPort() as refused:
            watcher = Watcher(refused.port, host)
            await watcher.lose_connection()
            assert watcher.reports == [FenceDeadBroker(7, 3, 500)]

    run(work())


def test_a_broker_that_accepts_connections_or_is_silent_is_not_reported() -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), HOST, 0)
        watcher = Watcher(server.sockets[0].getsockname()[1])
        await watcher.lose_connection()
        assert watcher.reports == []
        server.close()

    run(work())


def test_a_broker_that_restarts_between_the_probes_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        with RefusedPort() as refused:
            pauses: list[float] = []

            async def restart(pause_s: float) -> None:
                pauses.append(pause_s)
                refused.open()

            monkeypatch.setattr(broker_connections, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": restart}))
            watcher = Watcher(refused.port)
            await watcher.lose_connection()
            assert watcher.reports == [] and pauses == [PROBE_PAUSE_S]

    run(work())


@pytest.mark.parametrize(
    ("outcomes", "probes", "is_reported"),
    [
        ([Outcome.REFUSED, Outcome.REFUSED], 2, True),
        ([Outcome.UNKNOWN, Outcome.REFUSED, Outcome.UNKNOWN, Outcome.REFUSED, Outcome.REFUSED], 5, True),
        ([Outcome.REFUSED, Outcome.UNKNOWN, Outcome.ACCEPTED], 3, False),
        ([Outcome.UNKNOWN] * broker_connections.PROBES_MAX, broker_connections.PROBES_MAX, False),
    ],
)
def test_probes_without_an_outcome_are_repeated(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[Outcome], probes: int, is_reported: bool
) -> None:
    monkeypatch.setattr(broker_connections, "PROBE_PAUSE_S", 0.0)
    seen: list[Outcome] = []

    async def probe_once(self: BrokerConnections, endpoint: Endpoint) -> Outcome:
        seen.append(outcomes[len(seen)])
        return seen[-1]

    monkeypatch.setattr(BrokerConnections, "_probe_once", probe_once)

    async def work() -> None:
        watcher = Watcher(1)
        watcher.connections.probe(7)
        while watcher.connections._probing:
            await asyncio.sleep(0)
        assert len(seen) == probes and bool(watcher.reports) == is_reported

    run(work())


def test_a_controller_that_takes_over_probes_brokers_that_never_connected_to_it() -> None:
    async def work() -> None:
        with RefusedPort() as refused:
            watcher = Watcher(refused.port)
            watcher.connections.probe(7)
            await probes()
            assert watcher.reports == [FenceDeadBroker(7, 3, 500)]
        server = await asyncio.start_server(lambda reader, writer: writer.close(), HOST, 0)
        living = Watcher(server.sockets[0].getsockname()[1])
        living.connections.probe(7)
        await probes()
        assert living.reports == []
        server.close()

    run(work())


def test_fenced_brokers_and_the_node_itself_are_not_probed_and_stopping_ends_probes() -> None:
    async def work() -> None:
        with RefusedPort() as refused:
            watcher = Watcher(refused.port)
            watcher.broker = None
            await watcher.lose_connection()
            assert watcher.reports == []
            own = Peer("CONTROLLER", HOST, authority=OWN_NODE)
            watcher.connections.watch(own, 7)
            assert own.on_lost is None
            watcher = Watcher(refused.port)
            assert watcher.peer.on_lost is not None
            watcher.peer.on_lost()
            watcher.connections.stop()
            await probes()
            await watcher.lose_connection()
            assert watcher.reports == []

    run(work())


def test_the_decision_fences_a_broker_only_if_it_was_not_heard_of_since() -> None:
    harness = ControllerHarness((1, 2))
    harness.create(CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=2))
    harness.heartbeat(1, now_ms=1_000)
    epoch = harness.epochs[1]
    for request in (
        FenceDeadBroker(1, epoch, lost_ms=999),
        FenceDeadBroker(1, epoch + 1, lost_ms=1_000),
        FenceDeadBroker(9, epoch, lost_ms=1_000),
    ):
        assert harness.send_request(request) is False  # type: ignore[arg-type]
    assert harness.send_request(FenceDeadBroker(1, epoch, lost_ms=1_000)) is True  # type: ignore[arg-type]
    assert harness.context.state.brokers[1].fenced and harness.partition("t").leader == 2
    assert not harness.heartbeat(1, now_ms=1_100).is_fenced  # it was alive after all
