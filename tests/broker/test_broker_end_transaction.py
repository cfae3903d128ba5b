"""Transactional offsets in the log: what is written, what is loaded again, and the errors for late markers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest
from testkit.simulator.loop import SimulatedLoop
from tests.fakes import FakeClock
from tests.replication.replication_samples import NODE, NOW_MS, TOPIC_ID, elect, make_files, make_partition

from headrace.base.errors import ErrorCode, KafkaError
from headrace.broker.shard_runner import Coordination, CoordinatorTopic
from headrace.coordinators.group.handler_table import GROUP_HANDLERS
from headrace.coordinators.group.offset_reads import FetchGroup, fetch
from headrace.coordinators.group.records import GroupRecord, decode_group_record, encode_group_record
from headrace.coordinators.group.request import CoordinatorRequest
from headrace.coordinators.group.settings import GroupSettings
from headrace.coordinators.group.shard import GroupShard
from headrace.coordinators.group.transactional_commits import end_request
from headrace.metadata.image import Image, Topic
from headrace.metadata.image import Partition as PartitionState
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.stored.offsets import OffsetCommitKey, OffsetCommitValue
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from headrace.records.batch import BatchHeader, iterate_batches, read_header
from headrace.records.builder import BatchBuilder, build_batch
from headrace.records.control import (
    ControlRecord,
    ControlType,
    TransactionMarker,
    build_control_batch,
    build_marker,
)
from headrace.records.record import Record
from headrace.replication.journal import RECORDS_AT_ONCE
from headrace.replication.verification import Guard

OTHER = 2
GROUP = "readers"
P, Q = 7, 8
COMMIT, ABORT = TransactionMarker(True, 1), TransactionMarker(False, 1)


class OffsetsHarness:
    def __init__(self, **options: Any) -> None:
        self.loop = SimulatedLoop(Random(1))
        self.partition = make_partition(make_files(), **options)
        state = PartitionState(replicas=(NODE,), isr=(NODE,), leader=NODE, leader_epoch=0, partition_epoch=0)
        image = Image(topics={"t": Topic("t", TOPIC_ID, (state,))})
        topic = CoordinatorTopic(
            "t",
            lambda: GroupShard(GROUP_HANDLERS, GroupSettings(), lambda: image, Random(2)),
            encode_group_record,
            decode_group_record,
            end_request,
        )
        self.coordination = Coordination(topic, lambda: image, FakeClock(NOW_MS), self.loop)

    def run(self, scenario: Callable[..., Any]) -> None:
        async def run_elected() -> None:
            self.coordination.elected(self.partition)
            await self.coordination.settle()
            await scenario()
            self.coordination.close()

        self.loop.run_until_complete(run_elected())
        self.loop.close()
        assert self.loop.errors == []

    async def commit(self, offsets: Mapping[int, int]) -> None:
        partitions = [OffsetCommitRequest.OffsetCommitRequestPartition(*pair) for pair in offsets.items()]
        topics = [OffsetCommitRequest.OffsetCommitRequestTopic("t", TOPIC_ID, partitions)]
        await self.coordination.decide(GROUP, CoordinatorRequest(OffsetCommitRequest(GROUP, topics=topics), 9))
        await asyncio.sleep(0)

    async def commit_pending(
        self, producer: int, offsets: Mapping[int, int], epoch: int = 0, guard: Guard | None = None
    ) -> None:
        partitions = [TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(*pair) for pair in offsets.items()]
        topics = [TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic("t", partitions)]
        request = TxnOffsetCommitRequest("tx", GROUP, producer, epoch, topics=topics)
        guard = guard or self.coordination.guard(GROUP, producer, epoch, adds=False)
        await self.coordination.decide_in_transaction(GROUP, CoordinatorRequest(request, 4), guard)

    async def end(self, producer: int, marker: TransactionMarker, epoch: int = 0, version: int = 0) -> None:
        await self.coordination.end_transaction(0, producer, epoch, marker, version)
        await asyncio.sleep(0)  # readers of committed state see it from the next loop iteration on

    def append(self, batch: bytearray) -> None:
        """Append a batch as if another node had written it."""
        self.partition.append(memoryview(batch), read_header(batch), NOW_MS, NOW_MS, check_producer=False)

    async def lead_again(self) -> None:
        elect(self.partition, NODE, self.partition.leader_epoch + 1, (NODE,))
        self.coordination.elected(self.partition)
        await self.coordination.settle()

    def headers(self) -> list[BatchHeader]:
        log = self.partition.log
        return [header for _, header in iterate_batches(log.read(0, 1 << 20, log.log_end).range.read())]

    @property
    def committed(self) -> dict[int, int]:
        response = fetch(self.coordination.machine_of(GROUP), FetchGroup(GROUP, topics=None))
        return {one.partition_index: one.committed_offset for topic in response.topics for one in topic.partitions}

    @property
    def pending(self) -> list[int]:
        return sorted(index for _, index in self.coordination.machine_of(GROUP).offsets.pending.topic_partitions(GROUP))


def code_of(code: ErrorCode) -> Any:
    return pytest.raises(KafkaError, match=code.name)


def stored(index: int, offset: int) -> Record:
    """Return the key and value of an offset commit as a log record."""
    record = GroupRecord(OffsetCommitKey(GROUP, "t", index), OffsetCommitValue(offset, commit_timestamp=NOW_MS), 4)
    return Record(0, NOW_MS, *encode_group_record(record))


def test_a_txn_offset_commit_is_one_transactional_batch_ended_by_a_marker() -> None:
    harness = OffsetsHarness()

    async def scenario() -> None:
        await harness.commit({0: 1})
        await harness.commit_pending(P, {0: 5, 1: 6}, epoch=3)
        await harness.commit_pending(P, {2: 7}, epoch=3)
        assert harness.partition.last_stable_offset == 1
        await harness.end(P, COMMIT, epoch=4, version=2)
        assert harness.partition.last_stable_offset == harness.partition.high_watermark == 5
        assert [
            (one.producer_id, one.producer_epoch, one.base_sequence, one.is_transactional, one.is_control, one.record_count)
            for one in harness.headers()
        ] == [
            (-1, -1, -1, False, False, 1),
            (P, 3, -1, True, False, 2),
            (P, 3, -1, True, False, 1),
            (P, 4, -1, True, True, 1),
        ]  # fmt: skip
        assert harness.committed == {0: 5, 1: 6, 2: 7}
        await harness.lead_again()
        assert harness.committed == {0: 5, 1: 6, 2: 7} and harness.pending == []

    harness.run(scenario)


def test_pending_offsets_are_loaded_again_after_an_election_and_can_be_ended() -> None:
    harness = OffsetsHarness()

    async def scenario() -> None:
        await harness.commit({0: 1})
        await harness.commit_pending(P, {0: 5, 1: 6})
        await harness.commit_pending(Q, {1: 8})
        await harness.commit({1: 9})
        await harness.lead_again()
        assert harness.committed == {0: 1, 1: 9} and harness.pending == [0, 1]
        await harness.end(P, COMMIT)
        assert harness.committed == {0: 5, 1: 9} and harness.pending == [1]
        await harness.lead_again()
        await harness.end(Q, ABORT)
        assert harness.committed == {0: 5, 1: 9} and harness.pending == []

    harness.run(scenario)


def test_transactional_batches_and_control_records_written_by_kafka_are_loaded() -> None:
    """Load transactional batches, markers, other control records and a marker whose record was compacted away."""
    harness = OffsetsHarness()
    many = RECORDS_AT_ONCE * 2 + 1
    harness.append(
        build_batch([stored(index, 1) for index in range(many)], producer_id=P, producer_epoch=2, transactional=True)
    )
    harness.append(build_batch([stored(0, 2)]))
    harness.append(build_batch([stored(1, 3)], producer_id=Q, producer_epoch=0, transactional=True))
    harness.append(build_control_batch([ControlRecord(ControlType.LEADER_CHANGE, b"")], timestamp=NOW_MS))
    harness.append(build_marker(COMMIT, producer_id=P, producer_epoch=2, timestamp=NOW_MS))
    harness.append(build_batch([stored(2, 4)], producer_id=9, producer_epoch=0, base_sequence=0))  # not transactional
    harness.append(build_marker(ABORT, producer_id=99, producer_epoch=2, timestamp=NOW_MS))
    cleaned: dict[str, Any] = {
        "producer_id": Q,
        "producer_epoch": 0,
        "transactional": True,
        "control": True,
        "last_offset_delta": 0,
    }
    harness.append(BatchBuilder(NOW_MS).build(**cleaned))

    async def scenario() -> None:
        assert harness.committed == dict.fromkeys(range(many), 1) | {0: 2, 2: 4}
        assert harness.pending == [1]
        await harness.end(Q, COMMIT)
        assert harness.committed[1] == 3

    harness.run(scenario)


def test_a_corrupt_marker_makes_the_shard_unavailable() -> None:
    harness = OffsetsHarness()
    harness.append(build_control_batch(
        [ControlRecord(ControlType.COMMIT, b"")], timestamp=NOW_MS, producer_epoch=0, transactional=True
    ))  # fmt: skip

    async def scenario() -> None:
        with code_of(ErrorCode.COORDINATOR_NOT_AVAILABLE):
            await harness.commit({0: 1})
        with code_of(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            await harness.end(P, COMMIT)

    harness.run(scenario)


def test_a_refused_marker_leaves_the_offsets_unchanged() -> None:
    harness = OffsetsHarness()

    async def scenario() -> None:
        await harness.commit_pending(P, {0: 5}, epoch=3)
        with code_of(ErrorCode.INVALID_PRODUCER_EPOCH):
            await harness.end(P, COMMIT, epoch=2)
        with code_of(ErrorCode.INVALID_PRODUCER_EPOCH):  # version 2 requires a higher epoch for every marker
            await harness.end(P, COMMIT, epoch=3, version=2)
        harness.partition.configure(2)
        with code_of(ErrorCode.NOT_ENOUGH_REPLICAS):
            await harness.end(P, COMMIT, epoch=3)
        harness.partition.configure(1)
        assert harness.committed == {} and harness.pending == [0] and harness.partition.log.log_end == 1
        await harness.end(P, TransactionMarker(True, 5), epoch=3)
        with code_of(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
            await harness.end(P, TransactionMarker(False, 4), epoch=3)
        assert harness.committed == {0: 5} and harness.pending == []

    harness.run(scenario)


def test_markers_are_accepted_only_by_the_leader_once_its_coordinator_has_loaded() -> None:
    harness = OffsetsHarness()

    async def scenario() -> None:
        with code_of(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            await harness.coordination.end_transaction(1, P, 0, COMMIT, 0)
        elect(harness.partition, NODE, 1, (NODE,))
        harness.coordination.elected(harness.partition)
        with code_of(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            await harness.end(P, COMMIT)  # the shard is still loading
        await harness.coordination.settle()
        harness.partition.advance = lambda: None  # simulates a follower that has not fetched yet
        ending = harness.coordination.end_transaction(0, P, 0, COMMIT, 0)
        assert not ending.done()
        elect(harness.partition, OTHER, 2, (NODE,))
        harness.coordination.elected(harness.partition)
        with code_of(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            await ending

    harness.run(scenario)


def test_late_offset_commits_do_not_open_a_new_transaction() -> None:
    harness = OffsetsHarness()

    async def scenario() -> None:
        guard = harness.coordination.guard(GROUP, P, 0, adds=False)
        assert guard.waits
        await harness.end(P, ABORT)
        with code_of(ErrorCode.INVALID_TXN_STATE):
            await harness.commit_pending(P, {0: 5}, guard=guard)
        await harness.end(P, ABORT, epoch=1)
        with code_of(ErrorCode.INVALID_PRODUCER_EPOCH):
            harness.coordination.guard(GROUP, P, 0, adds=True)
        assert harness.pending == []
        await harness.commit_pending(P, {0: 5}, epoch=1)
        assert not harness.coordination.guard(GROUP, P, 1, adds=True).waits  # the transaction is already open
        waiting = harness.coordination.guard(GROUP, Q, 0, adds=True)
        await harness.lead_again()
        with code_of(ErrorCode.NOT_COORDINATOR):
            await harness.commit_pending(Q, {0: 5}, guard=waiting)

    harness.run(scenario)


def test_oversized_offset_batches_are_refused_and_batches_are_not_compressed() -> None:
    harness = OffsetsHarness(max_message_bytes=200, compression_type="gzip")

    async def scenario() -> None:
        with code_of(ErrorCode.UNKNOWN_SERVER_ERROR):
            await harness.commit_pending(P, dict.fromkeys(range(9), 1))
        assert harness.pending == []
        await harness.commit_pending(P, {0: 5})
        assert harness.pending == [0] and [one.codec for one in harness.headers()] == [0]

    harness.run(scenario)
