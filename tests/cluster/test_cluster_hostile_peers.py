"""Peers that send garbage or impossible numbers to the listeners of a cluster: the right error, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.cluster.simulated_cluster import SimulatedCluster, simulate

from headrace.base.errors import ErrorCode
from headrace.base.ids import METADATA_TOPIC, METADATA_TOPIC_ID, Uuid
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.alter_partition import AlterPartitionRequest
from headrace.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from headrace.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from headrace.protocol.messages.envelope import EnvelopeRequest
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from headrace.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from headrace.protocol.messages.vote import VoteRequest
from headrace.quorum.snapshots import SnapshotId

CONTROLLER_PORT, BROKER_PORT = 9093, 9092
UNKNOWN = Uuid(b"x" * 16)
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
MANY = 50_000


def snapshot_request(end_offset: int, epoch: int, position: int = 0, leader_epoch: int = -1) -> FetchSnapshotRequest:
    partition = FetchSnapshotRequest.PartitionSnapshot(
        current_leader_epoch=leader_epoch,
        snapshot_id=FetchSnapshotRequest.SnapshotId(end_offset=end_offset, epoch=epoch),
        position=position,
    )
    topic = FetchSnapshotRequest.TopicSnapshot(name=METADATA_TOPIC, partitions=[partition])
    return FetchSnapshotRequest(topics=[topic], max_bytes=INT_MAX)


def metadata_fetch(offset: int, epoch: int = -1, last_epoch: int = 0, replica: int = 2) -> FetchRequest:
    partition = FetchRequest.FetchPartition(
        current_leader_epoch=epoch, fetch_offset=offset, last_fetched_epoch=last_epoch, partition_max_bytes=INT_MAX
    )
    topic = FetchRequest.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])
    return FetchRequest(replica_state=FetchRequest.ReplicaState(replica_id=replica), topics=[topic], max_wait_ms=0)


def vote(epoch: int, candidate: int, offset: int, last_epoch: int, **fields: Any) -> VoteRequest:
    partition = VoteRequest.PartitionData(
        replica_epoch=epoch, replica_id=candidate, last_offset=offset, last_offset_epoch=last_epoch, **fields
    )
    return VoteRequest(topics=[VoteRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])])


def alter(topic_id: Uuid, index: int, members: list[int], **fields: Any) -> AlterPartitionRequest:
    partition = AlterPartitionRequest.PartitionData(
        partition_index=index,
        new_isr_with_epochs=[AlterPartitionRequest.BrokerState(broker_id=one) for one in members],
        **fields,
    )
    topic = AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=[partition])
    return AlterPartitionRequest(topics=[topic])


def snapshot_code(response: Any) -> int:
    return response.error_code or response.topics[0].partitions[0].error_code


def to_controller(check: Callable[[SimulatedCluster, Connection], Any], seed: int) -> None:
    """Run `check` with a connection to the active controller; afterwards the cluster must be as before, and work."""

    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(3)
        leader = await cluster.until_controller()
        drivers = {node_id: machine.node.controller.driver for node_id, machine in cluster.machines.items()}
        await cluster.until(lambda: len({driver.high_watermark for driver in drivers.values()}) == 1)
        epochs = {node_id: driver.raft.epoch for node_id, driver in drivers.items()}
        state = cluster.state()
        connection = await Connection.connect(f"node-{leader}", CONTROLLER_PORT)
        await check(cluster, connection)
        await connection.close()
        assert {node_id: driver.raft.epoch for node_id, driver in drivers.items()} == epochs
        assert cluster.active_controller() == leader and cluster.state() == state
        await cluster.send(3)
        await cluster.create("u")
        assert cluster.failures == {}

    simulate(main, seed=seed)


def test_impossible_fetches_of_the_metadata_log_are_refused_or_diverge() -> None:
    async def check(cluster: SimulatedCluster, connection: Connection) -> None:
        driver = cluster.machines[cluster.active_controller()].node.controller.driver
        high_watermark = driver.high_watermark
        for offset, last_epoch in [(-1, 0), (-(2**63), 0)]:
            response = await connection.request(metadata_fetch(offset, last_epoch=last_epoch))
            assert response.error_code == ErrorCode.INVALID_REQUEST
        for epoch, code in [
            (INT_MAX, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (0, ErrorCode.FENCED_LEADER_EPOCH),
        ]:
            data = (await connection.request(metadata_fetch(0, epoch))).responses[0].partitions[0]
            assert data.error_code == code
        for offset, last_epoch in [(LONG_MAX, 1), (LONG_MAX, INT_MAX), (1, INT_MAX), (high_watermark + 1, 1)]:
            data = (await connection.request(metadata_fetch(offset, last_epoch=last_epoch))).responses[0].partitions[0]
            assert data.error_code != ErrorCode.NONE or data.diverging_epoch.end_offset >= 0
        assert (
            driver.high_watermark >= high_watermark
        )  # a voter that claims records which it cannot have does not count

    to_controller(check, 1)


def test_impossible_votes_and_epochs_are_refused() -> None:
    async def check(cluster: SimulatedCluster, connection: Connection) -> None:
        me = cluster.active_controller()
        other = next(node_id for node_id in cluster.machines if node_id != me)
        for message in [
            vote(INT_MAX, other, LONG_MAX, INT_MAX),
            vote(-1, other, 0, 0),
            vote(5, other, -1, 0),
            vote(5, other, 0, -1),
            vote(5, other, 0, 5),  # a log cannot have records of the epoch that begins
            vote(5, -1, 0, 0),
        ]:
            data = (await connection.request(message)).topics[0].partitions[0]
            assert (ErrorCode(data.error_code), data.vote_granted) == (ErrorCode.INVALID_REQUEST, False), message
        data = (await connection.request(vote(5, 77, 0, 0))).topics[0].partitions[0]
        assert data.error_code == ErrorCode.INCONSISTENT_VOTER_SET
        kinds: list[Any] = [BeginQuorumEpochRequest, EndQuorumEpochRequest]
        for kind in kinds:
            for epoch, leader, code in [
                (-1, other, ErrorCode.INVALID_REQUEST),
                (INT_MAX, other, ErrorCode.INVALID_REQUEST),
                (1, -1, ErrorCode.INVALID_REQUEST),
                (5, 77, ErrorCode.INCONSISTENT_VOTER_SET),
            ]:
                partition = kind.PartitionData(leader_id=leader, leader_epoch=epoch)
                topic = kind.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
                response = await connection.request(kind(topics=[topic]))
                assert response.topics[0].partitions[0].error_code == code
        partition = EndQuorumEpochRequest.PartitionData(
            leader_id=other,
            leader_epoch=1,
            preferred_candidates=[EndQuorumEpochRequest.ReplicaInfo(candidate_id=n) for n in range(MANY)],
        )
        topic = EndQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
        response = await connection.request(EndQuorumEpochRequest(topics=[topic]))
        assert response.topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST

    to_controller(check, 2)


def test_snapshots_that_do_not_exist_or_were_deleted_are_not_found() -> None:
    async def check(cluster: SimulatedCluster, connection: Connection) -> None:
        controller = cluster.machines[cluster.active_controller()].node.controller
        for end_offset, epoch in [(LONG_MAX, INT_MAX), (-1, -1), (7, 1)]:
            assert snapshot_code(await connection.request(snapshot_request(end_offset, epoch))) == (
                ErrorCode.SNAPSHOT_NOT_FOUND
            )
        # Deleted between the look at the list and the file, because a newer snapshot was taken.
        gone = SnapshotId(3, 1)
        controller.driver._snapshots.ids.append(gone)
        assert snapshot_code(await connection.request(snapshot_request(*gone))) == ErrorCode.SNAPSHOT_NOT_FOUND
        controller.driver._snapshots.ids.remove(gone)
        assert snapshot_code(await connection.request(snapshot_request(7, 1, leader_epoch=0))) == (
            ErrorCode.FENCED_LEADER_EPOCH
        )
        assert (await connection.request(FetchSnapshotRequest())).error_code == ErrorCode.INVALID_REQUEST

    to_controller(check, 3)


def test_a_position_outside_a_snapshot_is_refused() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        for number in range(6):
            await cluster.create(f"u-{number}", replicas=2)
        leader = await cluster.until_controller()
        snapshots = cluster.machines[leader].node.controller.driver._snapshots
        await cluster.until(lambda: snapshots.newest is not None)
        connection = await Connection.connect(f"node-{leader}", CONTROLLER_PORT)
        newest = snapshots.newest
        for position in (-1, LONG_MAX, -(2**63)):
            response = await connection.request(snapshot_request(*newest, position=position))
            assert snapshot_code(response) == ErrorCode.POSITION_OUT_OF_RANGE
        response = await connection.request(snapshot_request(*newest))
        assert snapshot_code(response) == ErrorCode.NONE and response.topics[0].partitions[0].unaligned_records
        await connection.close()

    simulate(main, seed=4, options={"metadata.log.max.record.bytes.between.snapshots": "400"})


def test_changes_of_partitions_by_others_than_their_leader_are_refused() -> None:
    async def check(cluster: SimulatedCluster, connection: Connection) -> None:
        image = cluster.image()
        topic_id, state = image.topics["t"].id, cluster.state()
        follower = next(node_id for node_id in cluster.machines if node_id != state.leader)
        epochs = {"leader_epoch": state.leader_epoch, "partition_epoch": state.partition_epoch}

        async def code_of(request: AlterPartitionRequest, broker_id: int) -> ErrorCode:
            request.broker_id = broker_id
            request.broker_epoch = image.brokers[broker_id].epoch if broker_id in image.brokers else 0
            response = await connection.request(request)
            return ErrorCode(response.error_code or response.topics[0].partitions[0].error_code)

        leader = state.leader
        assert await code_of(alter(topic_id, 0, [follower], **epochs), follower) is ErrorCode.INVALID_REQUEST
        assert await code_of(alter(topic_id, 0, [1, 2, 3, 99], **epochs), leader) is ErrorCode.INVALID_REQUEST
        assert await code_of(alter(topic_id, 0, [], **epochs), leader) is ErrorCode.INVALID_REQUEST
        assert await code_of(alter(topic_id, 0, [leader] * MANY, **epochs), leader) is ErrorCode.INVALID_REQUEST
        assert await code_of(alter(topic_id, 0, list(range(MANY)), **epochs), leader) is ErrorCode.INVALID_REQUEST
        assert await code_of(alter(topic_id, 0, [leader, -5], **epochs), leader) is ErrorCode.INVALID_REQUEST
        for index in (-1, 1, INT_MAX):
            unknown = await code_of(alter(topic_id, index, [leader], **epochs), leader)
            assert unknown is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await code_of(alter(UNKNOWN, 0, [leader], **epochs), leader) is ErrorCode.UNKNOWN_TOPIC_ID
        old = {"leader_epoch": -1, "partition_epoch": state.partition_epoch}
        assert await code_of(alter(topic_id, 0, [leader], **old), leader) is ErrorCode.FENCED_LEADER_EPOCH
        new = {"leader_epoch": INT_MAX, "partition_epoch": INT_MAX}
        assert await code_of(alter(topic_id, 0, [leader], **new), leader) is ErrorCode.NOT_CONTROLLER
        stranger = await code_of(alter(topic_id, 0, [99], **epochs), 99)
        assert stranger is ErrorCode.BROKER_ID_NOT_REGISTERED

    to_controller(check, 5)


def test_other_requests_of_brokers_with_impossible_contents_are_refused() -> None:
    async def check(cluster: SimulatedCluster, connection: Connection) -> None:
        broker = cluster.image().brokers[1]
        heartbeat = BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=broker.epoch, current_metadata_offset=LONG_MAX, offline_log_dirs=[UNKNOWN] * 100
        )
        assert (await connection.request(heartbeat)).error_code == ErrorCode.NONE  # unknown directories mean nothing
        directory = AssignReplicasToDirsRequest.DirectoryData(
            id=UNKNOWN,
            topics=[
                AssignReplicasToDirsRequest.TopicData(
                    topic_id=UNKNOWN,
                    partitions=[AssignReplicasToDirsRequest.PartitionData(partition_index=n) for n in range(MANY)],
                )
            ],
        )
        request = AssignReplicasToDirsRequest(broker_id=1, broker_epoch=broker.epoch, directories=[directory])
        response = await connection.request(request)
        codes = {one.error_code for one in response.directories[0].topics[0].partitions}
        assert codes == {ErrorCode.UNKNOWN_TOPIC_ID}
        envelope = EnvelopeRequest(request_data=b"\xff" * 40, request_principal=b"\xff", client_host_address=b"\x01")
        assert (await connection.request(envelope)).error_code != ErrorCode.NONE

    to_controller(check, 6)


@pytest.mark.parametrize("port", [BROKER_PORT, CONTROLLER_PORT])
def test_garbage_on_a_listener_closes_only_that_connection(port: int) -> None:
    async def check(cluster: SimulatedCluster, connection: Connection) -> None:
        for node_id in cluster.machines:
            for frame in (
                b"\x00\x00\x00\x20" + b"\xff" * 32,
                b"\x7f\xff\xff\xff",
                b"\xff" * 100,
                b"GET / HTTP/1.1\r\n\r\n",
            ):
                transport, protocol = await cluster.loop.create_connection(Listening, f"node-{node_id}", port)
                transport.write(frame)
                await cluster.until(partial(getattr, protocol, "is_closed"))

    to_controller(check, 7)


class Listening:
    """A peer that reads until its connection is closed."""

    is_closed = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received = data

    def eof_received(self) -> None:
        self.is_closed = True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True


def test_replicas_and_consumers_learn_where_a_leader_epoch_ends() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(5)
        old = cluster.leader()
        cluster.down(cluster.machines[old])
        await cluster.send(5)
        leader, state = cluster.leader(), cluster.state()
        connection = await cluster.client.broker(leader)

        async def end_of(epoch: int, current: int, replica: int) -> tuple[ErrorCode, int, int]:
            partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                partition=0, current_leader_epoch=current, leader_epoch=epoch
            )
            topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="t", partitions=[partition])
            response = await connection.request(OffsetForLeaderEpochRequest(replica_id=replica, topics=[topic]))
            found = response.topics[0].partitions[0]
            return ErrorCode(found.error_code), found.leader_epoch, found.end_offset

        for replica in (old, -1):
            assert await end_of(0, state.leader_epoch, replica) == (ErrorCode.NONE, 0, 5)
            assert await end_of(state.leader_epoch, state.leader_epoch, replica) == (
                ErrorCode.NONE,
                state.leader_epoch,
                10,
            )
            assert await end_of(INT_MAX, state.leader_epoch, replica) == (ErrorCode.NONE, -1, -1)
            assert (await end_of(0, 0, replica))[0] is ErrorCode.FENCED_LEADER_EPOCH
            assert (await end_of(0, INT_MAX, replica))[0] is ErrorCode.UNKNOWN_LEADER_EPOCH
        cluster.start(old)

    simulate(main, seed=9)
