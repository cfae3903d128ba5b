"""What a broker reports to the controller about its directories: replica locations, failures, and when it gives up."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from testkit.simulator.loop import SimulatedLoop

from headrace.base.errors import ErrorCode
from headrace.base.ids import NodeId, TopicPartition, Uuid
from headrace.broker.membership.directory_assignments import REPLICAS_PER_REQUEST_MAX, RETRY_S, DirectoryAssignments
from headrace.broker.membership.registration import BrokerIdentity, HeartbeatTimes, Registration
from headrace.client.wire.connection import Disconnected
from headrace.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace.replication.directories import StorageFailed

TOPIC_ID, DIRECTORY = Uuid(b"t" * 16), Uuid(b"d" * 16)
HEARTBEAT_S = 2.0


class Channel:
    """A controller whose responses the test provides."""

    def __init__(self, response: Callable[[Any], Any]) -> None:
        self.requests: list[Any] = []
        self.response = response

    async def request(self, message: Any) -> Any:
        self.requests.append(message)
        response = self.response(message)
        if isinstance(response, Exception):
            raise response
        return response


def reported(request: AssignReplicasToDirsRequest) -> list[int]:
    return [p.partition_index for d in request.directories for t in d.topics for p in t.partitions]


def test_replica_directories_are_sent_in_batches_and_retried_until_accepted() -> None:
    loop = SimulatedLoop(Random(1))
    answers = [Disconnected("gone"), AssignReplicasToDirsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)]
    channel = Channel(lambda request: answers.pop(0) if answers else AssignReplicasToDirsResponse())
    count = REPLICAS_PER_REQUEST_MAX + 5
    replicas = SimpleNamespace(unassigned={TopicPartition("t", n): (TOPIC_ID, DIRECTORY) for n in range(count)})

    async def main() -> None:
        assignments = DirectoryAssignments(channel, NodeId(1), replicas, lambda: 7)  # type: ignore[arg-type]
        replicas.on_unassigned()
        task = loop.create_task(assignments.run())
        while len(channel.requests) < 4:
            await _sleep(loop, RETRY_S)
        await _sleep(loop, 10 * RETRY_S)
        assert [len(reported(request)) for request in channel.requests] == [REPLICAS_PER_REQUEST_MAX] * 3 + [5]
        assert {request.broker_epoch for request in channel.requests} == {7}
        replicas.unassigned = {TopicPartition("t", 3): (TOPIC_ID, Uuid(b"e" * 16))}  # the replica has moved since
        replicas.on_unassigned()
        await _sleep(loop, RETRY_S)
        assert reported(channel.requests[-1]) == [3] and len(channel.requests) == 5
        task.cancel()

    loop.run_until_complete(main())
    loop.close()


def registration(channel: Channel, offline: list[Uuid], given_up: list[StorageFailed]) -> Registration:
    directories: Any = SimpleNamespace(
        offline_ids=lambda: list(offline), online_ids=lambda: [DIRECTORY], cordoned_ids=list
    )
    identity = BrokerIdentity(NodeId(1), "c", Uuid(b"i" * 16), rack=None, features={})
    return Registration(
        channel, identity, HeartbeatTimes(HEARTBEAT_S, 30.0, 60.0), list, directories, lambda: 5, given_up.append
    )


def test_a_failed_directory_is_reported_in_an_immediate_heartbeat() -> None:
    loop = SimulatedLoop(Random(1))
    channel = Channel(lambda request: BrokerHeartbeatResponse(is_fenced=False))
    offline: list[Uuid] = []
    given_up: list[StorageFailed] = []

    async def main() -> None:
        subject = registration(channel, offline, given_up)
        task = loop.create_task(subject.run())
        await _sleep(loop, HEARTBEAT_S + 0.1)
        assert [request.offline_log_dirs for request in channel.requests] == [[]]
        offline.append(DIRECTORY)
        subject.heartbeat_now()
        await _sleep(loop, 0.1)
        assert channel.requests[-1].offline_log_dirs == [DIRECTORY] and len(channel.requests) == 2
        await _sleep(loop, 100.0)
        assert given_up == []
        task.cancel()

    loop.run_until_complete(main())
    loop.close()


def test_a_broker_gives_up_if_a_failed_directory_cannot_be_reported_for_30_s() -> None:
    loop = SimulatedLoop(Random(1))
    channel = Channel(
        lambda request: Disconnected("no controller") if isinstance(request, BrokerHeartbeatRequest) else 0
    )
    offline: list[Uuid] = []
    given_up: list[StorageFailed] = []

    async def main() -> None:
        subject = registration(channel, offline, given_up)
        task = loop.create_task(subject.run())
        await _sleep(loop, 100.0)
        assert given_up == []  # heartbeats may fail as long as no directory does
        offline.append(DIRECTORY)
        subject.heartbeat_now()
        await _sleep(loop, 25.0)
        assert given_up == []
        await _sleep(loop, 10.0)
        assert given_up and "could not be reported to the controller for 30 s" in str(given_up[0])
        task.cancel()

    loop.run_until_complete(main())
    loop.close()


async def _sleep(loop: SimulatedLoop, seconds: float) -> None:
    """Sleep in virtual time."""
    future = loop.create_future()
    loop.call_later(seconds, future.set_result, None)
    await future
