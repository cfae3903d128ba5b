"""Three controllers over loopback: one leads, the others are hot standbys, and one of them takes over."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from itertools import permutations
from pathlib import Path

import pytest
from tests.node.controllers import LOOPBACK, Controllers

from headrace.base.errors import ConfigError, ErrorCode
from headrace.base.ids import METADATA_TOPIC, METADATA_TOPIC_ID, NodeId
from headrace.client.wire.connection import Connection
from headrace.metadata.image import BROKER_CONFIG
from headrace.node.node import Node
from headrace.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest
from headrace.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.stored.metadata_cluster import FeatureLevelRecord
from headrace.protocol.messages.vote import VoteRequest
from headrace.quorum.snapshots import SnapshotFiles, SnapshotId, snapshot_batches
from headrace.quorum.voter_records import VoterRecords
from headrace.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from headrace.storage.checkpoints import read_meta_properties
from headrace.storage.disk import DiskFiles

# A failover that waits for this timeout takes longer than a test waits for a leader.
NO_FETCH_TIMEOUT = {"controller.quorum.fetch.timeout.ms": "600000"}


def run_quorum(directory: Path, work: Callable[[Controllers], Awaitable[None]], **options: str) -> None:
    async def run() -> None:
        quorum = Controllers(directory)
        await quorum.start(**options)
        await quorum.until_registered()
        try:
            await work(quorum)
        finally:
            await quorum.stop()

    asyncio.run(run())


def assert_same_logs(quorum: Controllers) -> None:
    logs = [quorum.batches(node_id) for node_id in quorum.nodes]
    assert all(one == logs[0] for one in logs[1:])


def test_when_the_leader_dies_another_controller_leads_long_before_the_fetch_timeout(tmp_path: Path) -> None:
    async def work(quorum: Controllers) -> None:
        first = quorum.leader
        await quorum.write(20)
        await quorum.until_equal()
        assert_same_logs(quorum)
        await quorum.kill(first)
        assert await quorum.until_leader() != first
        await quorum.write(20)
        await quorum.start(first, **NO_FETCH_TIMEOUT)
        await quorum.until_equal()
        assert_same_logs(quorum)

    run_quorum(tmp_path, work, **NO_FETCH_TIMEOUT)


def test_a_controller_that_stops_names_its_successor_and_loses_nothing(tmp_path: Path) -> None:
    async def work(quorum: Controllers) -> None:
        for _ in range(2):
            leader = quorum.leader
            await quorum.write(5)
            await quorum.stop(leader)
            await quorum.until_leader()
            await quorum.start(leader, **NO_FETCH_TIMEOUT)
        await quorum.until_equal()
        assert_same_logs(quorum)

    run_quorum(tmp_path, work, **NO_FETCH_TIMEOUT)


def test_standbys_have_the_state_of_the_leader_and_refuse_its_requests(tmp_path: Path) -> None:
    async def work(quorum: Controllers) -> None:
        leader = quorum.leader
        await quorum.set_broker_option(leader, "log.retention.ms", "12345")
        await quorum.until_equal()
        states = [node.controller._machine.context.committed_state for node in quorum.nodes.values()]
        await quorum.until(lambda: vars(states[0]()) == vars(states[1]()) == vars(states[2]()))
        assert states[0]().config(BROKER_CONFIG, "")["log.retention.ms"] == "12345"
        for node_id, node in quorum.nodes.items():
            assert node.controller.leader == leader and node.health()["ok"]
            code = await quorum.create_topic(node_id, "t")
            assert code == (ErrorCode.INVALID_REPLICATION_FACTOR if node_id == leader else ErrorCode.NOT_CONTROLLER)

    run_quorum(tmp_path, work)


def test_controllers_register_with_the_active_one(tmp_path: Path) -> None:
    async def work(quorum: Controllers) -> None:
        contexts = [node.controller._machine.context for node in quorum.nodes.values()]
        await quorum.until(lambda: all(len(context.committed_state().controllers) == 3 for context in contexts))
        found = contexts[0].committed_state().controllers
        assert {node_id: record.end_points[0].port for node_id, record in found.items()} == quorum.ports

    run_quorum(tmp_path, work)


def test_records_that_a_deposed_leader_could_not_commit_are_truncated_when_it_returns(tmp_path: Path) -> None:
    async def work(quorum: Controllers) -> None:
        first = quorum.leader
        others = [node_id for node_id in quorum.nodes if node_id != first]
        await quorum.write()
        await quorum.until_equal()
        committed = quorum.end_offset(first)
        await quorum.kill(*others)
        driver = quorum.nodes[first].controller.driver
        for _ in range(3):
            driver.propose([FeatureLevelRecord(name="kraft.version", feature_level=0)])
        await quorum.until(lambda: not driver.raft._log.end_offset > driver.raft._durable)
        assert driver.high_watermark == committed and driver.log.end_offset == committed + 3
        await quorum.kill(first)
        await quorum.start(*others)
        await quorum.until_leader()
        await quorum.write(2)
        await quorum.start(first)
        await quorum.until_equal()
        assert_same_logs(quorum)
        records = [record for batch in quorum.batches(first) for record in batch.records]
        assert not any(isinstance(record, FeatureLevelRecord) and record.name == "kraft.version" for record in records)

    run_quorum(tmp_path, work)


def test_a_leader_without_a_majority_resigns_and_leads_again_when_it_is_back(tmp_path: Path) -> None:
    async def work(quorum: Controllers) -> None:
        first = quorum.leader
        others = [node_id for node_id in quorum.nodes if node_id != first]
        await quorum.kill(*others)
        node = quorum.nodes[first]
        await quorum.until(lambda: not node.controller.runtime.leading)
        assert not node.health()["ok"] and "no leader" in node.health()["problems"][0]
        await quorum.start(*others)
        await quorum.until_leader()
        await quorum.write()
        await quorum.until_equal()

    run_quorum(tmp_path, work)


def test_three_controllers_start_in_every_order_and_keep_the_log(tmp_path: Path) -> None:
    async def run() -> None:
        quorum = Controllers(tmp_path)
        await quorum.start()
        for order in permutations(quorum.ports):
            await quorum.until_leader()
            await quorum.write(2)
            await quorum.until_equal()
            end = quorum.end_offset(1)
            for node_id in order:
                await quorum.stop(node_id)
            starting = []
            for node_id in order:
                starting.append(asyncio.ensure_future(quorum.start(node_id)))
                await asyncio.sleep(0.05)
            await asyncio.gather(*starting)
            await quorum.until_leader()
            await quorum.until_equal()
            assert quorum.end_offset(1) > end
            assert_same_logs(quorum)
        await quorum.stop()

    asyncio.run(run())


def test_a_controller_alone_waits_and_says_for_whom(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> None:
        quorum = Controllers(tmp_path)
        starting = asyncio.ensure_future(quorum.start_one(1))
        await quorum.until(lambda: "waiting for a majority of the voters 2, 3" in caplog.text)
        assert "Connection refused" in caplog.text and not starting.done()
        await quorum.start(2)
        await starting
        await quorum.stop()

    asyncio.run(run())


def test_a_voter_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        quorum = Controllers(tmp_path, cluster_ids={3: "AAAAAAAAQAGAAAAAAAAAAg"})
        stranger = asyncio.ensure_future(quorum.start_one(3))
        await quorum.start(1, 2)
        await quorum.write(3)
        connection = await Connection.connect(LOOPBACK, quorum.ports[quorum.leader])
        assert (
            await connection.request(VoteRequest(cluster_id="other"))
        ).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        fetch = FetchRequest(cluster_id="other")
        assert (await connection.request(fetch)).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        await connection.close()
        assert not stranger.done()
        stranger.cancel()
        await asyncio.gather(stranger, return_exceptions=True)
        await quorum.stop()

    asyncio.run(run())


def test_three_combined_nodes_form_a_cluster_and_survive_the_loss_of_the_leader(tmp_path: Path) -> None:
    async def run() -> None:
        quorum = Controllers(tmp_path, are_brokers=True)
        await quorum.start()
        first = await quorum.until_leader()
        assert all(node.health()["ok"] for node in quorum.nodes.values())
        await quorum.kill(first)
        second = await quorum.until_leader()
        assert second != first
        await quorum.start(first)
        await quorum.until(lambda: all(node.health()["ok"] for node in quorum.nodes.values()))
        brokers = quorum.nodes[first].broker.image.brokers
        assert sorted(brokers) == [1, 2, 3]
        voters = quorum.nodes[second].controller.driver.raft.leading.observers(VoterSet.of_ids(1, 2, 3))
        assert voters == {}  # the brokers of combined nodes are no replicas of their own
        for node_id in list(quorum.nodes):
            await quorum.kill(node_id)

    asyncio.run(run())


def test_a_broker_without_a_controller_joins_and_controllers_without_brokers_serve_it(tmp_path: Path) -> None:
    async def run() -> None:
        quorum = Controllers(tmp_path)
        await quorum.start()
        await quorum.until_leader()
        options = {
            "process.roles": "broker",
            "node.id": "10",
            "listeners": f"PLAINTEXT://{LOOPBACK}:0",
            "advertised.listeners": "",
            "log.dirs": str(tmp_path / "broker"),
        }
        settings = quorum.settings(1, **options)
        quorum.format(settings)
        node = await Node.start(settings, quorum.node_ports())
        assert node.controller is None and list(node.ports) == ["PLAINTEXT"] and node.health()["ok"]
        await quorum.kill(quorum.leader)
        leader = await quorum.until_leader()
        await quorum.until(lambda: 10 in quorum.nodes[leader].controller._machine.context.committed_state().brokers)
        observers = quorum.nodes[leader].controller.driver.raft.leading.observers
        await quorum.until(lambda: [key.id for key in observers(VoterSet.of_ids(1, 2, 3))] == [10])
        await node.stop()
        await quorum.stop()

    asyncio.run(run())


def test_voters_that_format_has_written_to_the_log_form_a_dynamic_quorum(tmp_path: Path) -> None:
    async def run() -> None:
        quorum = Controllers(tmp_path)
        bootstrap = ",".join(f"{LOOPBACK}:{port}" for port in quorum.ports.values())
        options = {"controller.quorum.voters": "", "controller.quorum.bootstrap.servers": bootstrap}
        voters = VoterSet(
            Voter(
                ReplicaKey(NodeId(node_id), read_meta_properties(DiskFiles(), path).directory_id),
                (Endpoint("CONTROLLER", LOOPBACK, port),),
            )
            for node_id, port in quorum.ports.items()
            for path in [f"{quorum.settings(node_id).metadata_dir}/meta.properties"]
        )
        for node_id in quorum.ports:
            directory = f"{quorum.settings(node_id).metadata_dir}/{METADATA_TOPIC}-0"
            Path(directory).mkdir()
            batches = snapshot_batches([], 0, 1, last_timestamp=1, control=VoterRecords(1, voters).control())
            SnapshotFiles(DiskFiles(), directory).write(SnapshotId(0, 0), batches)
        await quorum.start(**options)
        first = await quorum.until_leader()
        await quorum.write(3)
        await quorum.kill(first)
        await quorum.until_leader()
        await quorum.start(first, **options)
        await quorum.until_equal()
        assert_same_logs(quorum)
        for node in quorum.nodes.values():
            raft = node.controller.driver.raft
            assert raft.kraft_version == 1 and raft.voters == voters and raft.key == voters.get(raft.key.id).key
            state = Path(node.settings.metadata_dir, f"{METADATA_TOPIC}-0", "quorum-state").read_text()
            assert '"data_version":1' in state
        await quorum.stop()

    asyncio.run(run())


def test_a_node_of_a_larger_cluster_must_be_formatted_first(tmp_path: Path) -> None:
    async def run() -> None:
        quorum = Controllers(tmp_path)
        settings = quorum.settings(1, **{"log.dirs": str(tmp_path / "new")})
        with pytest.raises(ConfigError, match="format"):
            await Node.start(settings, quorum.node_ports())

    asyncio.run(run())


def test_garbage_and_impossible_numbers_on_the_controller_listener_change_nothing(tmp_path: Path) -> None:
    async def work(quorum: Controllers) -> None:
        leader = quorum.leader
        epochs = {node_id: node.controller.driver.raft.epoch for node_id, node in quorum.nodes.items()}
        for node_id, port in quorum.ports.items():
            with socket.create_connection((LOOPBACK, port)) as garbage:
                garbage.sendall(b"\x00\x00\x00\x20" + b"\xff" * 32)
            connection = await Connection.connect(LOOPBACK, port)
            for epoch in (-1, 2**31 - 1):
                for vote in (impossible_vote(node_id, epoch, 0, 0), impossible_vote(node_id, 5, -1, 0)):
                    response = await connection.request(vote)
                    assert response.topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
                for message in (begin(epoch, 1), end(epoch, 1), begin(5, -1)):
                    response = await connection.request(message)
                    assert response.topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
            response = await connection.request(begin(5, 77))
            assert response.topics[0].partitions[0].error_code == ErrorCode.INCONSISTENT_VOTER_SET
            for empty in (VoteRequest(), BeginQuorumEpochRequest(), EndQuorumEpochRequest(), FetchRequest()):
                assert (await connection.request(empty)).error_code == ErrorCode.INVALID_REQUEST
            await check_fetches(connection, quorum, is_leader=node_id == leader)
            await connection.close()
        assert quorum.leader == leader
        assert epochs == {node_id: node.controller.driver.raft.epoch for node_id, node in quorum.nodes.items()}
        await quorum.write()

    run_quorum(tmp_path, work)


async def check_fetches(connection: Connection, quorum: Controllers, *, is_leader: bool) -> None:
    epoch = quorum.nodes[quorum.leader].controller.driver.raft.epoch
    expected = [
        (fetch(epoch - 1, 0), ErrorCode.FENCED_LEADER_EPOCH),
        (fetch(epoch + 1, 0), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (fetch(2**31 - 1, 0), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (fetch(epoch, 0), ErrorCode.NONE if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]
    for message, code in expected:
        response = await connection.request(message)
        data = response.responses[0].partitions[0]
        assert data.error_code == code
        assert data.current_leader.leader_id == quorum.leader and data.current_leader.leader_epoch == epoch
        if code != ErrorCode.NONE:
            assert [(one.node_id, one.port) for one in response.node_endpoints] == [
                (quorum.leader, quorum.ports[quorum.leader])
            ]
    if is_leader:
        response = await connection.request(fetch(epoch, 2**62))
        assert response.responses[0].partitions[0].diverging_epoch.end_offset >= 0
    assert (await connection.request(fetch(epoch, -1))).error_code == ErrorCode.INVALID_REQUEST


def impossible_vote(node_id: int, epoch: int, last_offset: int, last_epoch: int) -> VoteRequest:
    candidate = 1 if node_id != 1 else 2
    partition = VoteRequest.PartitionData(
        replica_epoch=epoch, replica_id=candidate, last_offset=last_offset, last_offset_epoch=last_epoch
    )
    return VoteRequest(topics=[VoteRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])])


def begin(epoch: int, leader: int) -> BeginQuorumEpochRequest:
    partition = BeginQuorumEpochRequest.PartitionData(leader_id=leader, leader_epoch=epoch)
    topic = BeginQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return BeginQuorumEpochRequest(topics=[topic])


def end(epoch: int, leader: int) -> EndQuorumEpochRequest:
    partition = EndQuorumEpochRequest.PartitionData(leader_id=leader, leader_epoch=epoch)
    topic = EndQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return EndQuorumEpochRequest(topics=[topic])


def fetch(epoch: int, offset: int, replica_id: int = 50) -> FetchRequest:
    partition = FetchRequest.FetchPartition(
        current_leader_epoch=epoch, fetch_offset=offset, last_fetched_epoch=0, partition_max_bytes=1000
    )
    return FetchRequest(
        replica_state=FetchRequest.ReplicaState(replica_id=replica_id),
        topics=[FetchRequest.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


def test_describe_quorum_lists_all_voters_and_observers_on_the_leader_only(tmp_path: Path) -> None:
    async def work(quorum: Controllers) -> None:
        topic = DescribeQuorumRequest.TopicData(
            topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequest.PartitionData()]
        )
        request = DescribeQuorumRequest(topics=[topic])
        await quorum.until_equal()
        for node_id, port in quorum.ports.items():
            connection = await Connection.connect(LOOPBACK, port)
            await connection.request(fetch(-1, 0))
            response = await connection.request(request)
            await connection.close()
            data = response.topics[0].partitions[0]
            if node_id != quorum.leader:
                assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and data.leader_id == quorum.leader
                continue
            assert data.leader_id == node_id and data.high_watermark == quorum.end_offset(node_id)
            now_ms = time.time() * 1000
            assert [voter.replica_id for voter in data.current_voters] == [1, 2, 3]
            for voter in data.current_voters:
                assert voter.log_end_offset == data.high_watermark
                assert now_ms - 5000 < voter.last_fetch_timestamp <= now_ms + 1000
                assert now_ms - 5000 < voter.last_caught_up_timestamp <= now_ms + 1000
            assert [observer.replica_id for observer in data.observers] == [50]
            listeners = {node.node_id: node.listeners[0].port for node in response.nodes}
            assert listeners == quorum.ports

    run_quorum(tmp_path, work)
