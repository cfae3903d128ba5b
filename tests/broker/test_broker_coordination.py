"""A state machine on the local leader of a partition: replies after the commit, loading, and loss of leadership."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from testkit.simulator.loop import SimulatedLoop
from tests.fakes import FakeClock
from tests.replication.replication_samples import NODE, NOW_MS, TOPIC_ID, elect, make_files, make_partition

from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.broker.shard_runner import LOAD_AGAIN_S, Coordination, CoordinatorTopic
from headrace.coordinators.partitioning import coordinator_partition, java_hash
from headrace.metadata.image import Image, Topic
from headrace.metadata.image import Partition as PartitionState
from headrace.records.batch import read_header
from headrace.records.builder import build_batch
from headrace.records.record import Record
from headrace.statemachine.machine import Decision, Ticket
from headrace.statemachine.undo import Table, UndoLog
from headrace.storage.file_range import LogRead
from headrace.storage.files import File

OTHER = 2


class Register:
    """A key-value state machine: `set` replies to a parked `wait` for the key, `later` sets it by a timer."""

    def __init__(self) -> None:
        self.undo = UndoLog()
        self.values: Table[str, str] = Table(self.undo)
        self.waiting: Table[str, Ticket] = Table(self.undo)

    def decide(self, request: tuple[str, ...], now_ms: int, tx: Decision[Any]) -> None:
        verb, key, *rest = request
        if verb == "wait":
            self.waiting[key] = tx.ticket
        elif verb == "later":
            tx.arm((key, rest[0]), now_ms + 1000)
            tx.reply(tx.ticket, "armed")
        elif verb == "fail":
            tx.emit((key, "never"))
            raise KafkaError(ErrorCode.INVALID_REQUEST, "asked for")
        else:
            self._set(key, rest[0], tx)
            tx.reply(tx.ticket, f"{key} is set")

    def _set(self, key: str, value: str, tx: Decision[Any]) -> None:
        tx.emit((key, value))
        ticket = self.waiting.get(key)
        if ticket is not None:
            del self.waiting[key]
            tx.reply(ticket, value)

    def apply(self, record: tuple[str, str], offset: int) -> None:
        self.values[record[0]] = record[1]

    def on_timer(self, timer: Any, now_ms: int, tx: Decision[Any]) -> None:
        key, value = timer
        self._set(key, value, tx)

    def on_leading(self, now_ms: int, tx: Decision[Any]) -> None:
        pass


def encode(record: tuple[str, str]) -> tuple[bytes, bytes]:
    return record[0].encode(), record[1].encode()


def decode(key: bytes, value: bytes) -> tuple[str, str] | None:
    if key == b"!":
        raise CorruptData("this cannot be read")
    return None if key == b"?" else (key.decode(), value.decode())


class ShardHarness:
    def __init__(self, seed: int = 1) -> None:
        self.loop = SimulatedLoop(Random(seed))
        self.partition = make_partition(make_files())
        state = PartitionState(replicas=(NODE,), isr=(NODE,), leader=NODE, leader_epoch=0, partition_epoch=0)
        image = Image(topics={"t": Topic("t", TOPIC_ID, (state,))})
        topic = CoordinatorTopic("t", Register, encode, decode)
        self.coordination = Coordination(topic, lambda: image, FakeClock(NOW_MS, self.loop), self.loop)

    def run(self, scenario: Callable[..., Any]) -> None:
        async def run_elected() -> None:
            self.coordination.elected(self.partition)
            await self.coordination.settle()
            await scenario()
            self.coordination.close()

        self.loop.run_until_complete(run_elected())
        self.loop.close()
        assert self.loop.errors == []

    async def send_request(self, *request: str) -> str:
        return await self.coordination.decide("group", request)

    async def refusal(self, *request: str) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            await self.send_request(*request)
        return caught.value.code

    def lead(self, leader: int, epoch: int, isr: tuple[int, ...] = (NODE,)) -> None:
        elect(self.partition, leader, epoch, isr)
        self.coordination.elected(self.partition)

    @property
    def values(self) -> dict[str, str]:
        return dict(self.coordination.machine_of("group").values.items())


def test_groups_are_partitioned_by_javas_string_hash() -> None:
    assert [java_hash(text) for text in ("", "a", "group", "\U0001f600", "polygenelubricants")] == [
        0, 97, 98629247, 1772899, -(2**31),
    ]  # fmt: skip
    assert coordinator_partition("polygenelubricants", 50) == 0 and coordinator_partition("group", 50) == 47


def test_acknowledged_writes_are_loaded_again_after_an_election() -> None:
    harness = ShardHarness()

    async def scenario() -> None:
        assert await harness.send_request("set", "a", "1") == "a is set"
        assert await harness.refusal("fail", "b") is ErrorCode.INVALID_REQUEST
        assert await harness.send_request("set", "c", "2") == "c is set"
        assert harness.values == {"a": "1", "c": "2"} and harness.partition.log.log_end == 2
        harness.lead(NODE, 1)
        assert await harness.refusal("set", "d", "3") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await harness.coordination.settle()
        assert harness.values == {"a": "1", "c": "2"}

    harness.run(scenario)


def test_parked_requests_fail_with_not_coordinator_when_leadership_is_lost() -> None:
    harness = ShardHarness()

    async def scenario() -> None:
        waiting = harness.coordination.decide("group", ("wait", "a"))
        harness.lead(OTHER, 1)
        with pytest.raises(KafkaError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.NOT_COORDINATOR
        assert await harness.refusal("set", "a", "1") is ErrorCode.NOT_COORDINATOR
        harness.lead(NODE, 2)
        await harness.coordination.settle()
        waiting = harness.coordination.decide("group", ("wait", "a"))
        await harness.send_request("set", "a", "1")
        assert await waiting == "1"

    harness.run(scenario)


def test_an_offline_partition_fails_parked_requests_without_an_election() -> None:
    harness = ShardHarness()

    async def scenario() -> None:
        waiting = harness.coordination.decide("group", ("wait", "a"))
        harness.partition.go_offline("its disk has failed")
        with pytest.raises(KafkaError):
            await waiting
        assert await harness.refusal("set", "a", "1") is ErrorCode.NOT_COORDINATOR

    harness.run(scenario)


def test_a_refused_write_changes_nothing() -> None:
    harness = ShardHarness()

    async def scenario() -> None:
        await harness.send_request("set", "a", "1")
        harness.partition.configure(2)  # min.insync.replicas above the replica count
        assert await harness.refusal("set", "a", "2") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert harness.values == {"a": "1"}
        harness.partition.configure(1)
        await harness.send_request("set", "a", "3")
        assert harness.values == {"a": "3"}

    harness.run(scenario)


def test_timers_write_records_and_are_cancelled_when_leadership_is_lost() -> None:
    harness = ShardHarness()

    async def scenario() -> None:
        assert await harness.send_request("later", "a", "1") == "armed"
        assert await harness.coordination.decide("group", ("wait", "a")) == "1"
        assert harness.loop.time() >= 1.0
        await harness.send_request("later", "a", "2")
        harness.lead(OTHER, 1)
        harness.lead(NODE, 2)
        await harness.coordination.settle()
        assert await harness.send_request("later", "b", "3") == "armed"
        await harness.coordination.decide("group", ("wait", "b"))
        assert harness.values == {"a": "1", "b": "3"}

    harness.run(scenario)


def test_unknown_records_are_skipped_and_a_corrupt_one_makes_the_shard_unavailable() -> None:
    harness = ShardHarness()
    for key in (b"?", b"a", b"?"):
        batch = build_batch([Record(0, NOW_MS, key, b"1")])
        harness.partition.append(memoryview(batch), read_header(batch), NOW_MS, NOW_MS)

    async def scenario() -> None:
        assert harness.values == {"a": "1"}
        batch = build_batch([Record(0, NOW_MS, b"!", b"1")])
        harness.partition.append(memoryview(batch), read_header(batch), NOW_MS, NOW_MS)
        harness.lead(NODE, 2)
        await harness.coordination.settle()
        assert await harness.refusal("set", "a", "2") is ErrorCode.COORDINATOR_NOT_AVAILABLE

    harness.run(scenario)


def test_a_reply_is_sent_only_after_the_commit() -> None:
    harness = ShardHarness()

    async def scenario() -> None:
        harness.partition.advance = lambda: None  # simulates a follower that has not fetched yet
        waiting = harness.coordination.decide("group", ("set", "a", "1"))
        await _turns()
        assert not waiting.done() and harness.coordination.machine_of("group").values.committed("a") is None
        del harness.partition.advance
        harness.partition.advance()
        harness.partition._wake()
        assert await waiting == "a is set"
        assert harness.coordination.machine_of("group").values.committed("a") == "1"

    harness.run(scenario)


def test_loading_waits_until_records_of_an_earlier_epoch_are_committed() -> None:
    harness = ShardHarness()

    async def scenario() -> None:
        harness.partition.advance = lambda: None  # simulates records that are not on disk yet
        waiting = harness.coordination.decide("group", ("set", "a", "1"))
        harness.lead(OTHER, 1)
        with pytest.raises(KafkaError):
            await waiting
        harness.lead(NODE, 2)
        await _turns()
        assert await harness.refusal("set", "b", "2") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        del harness.partition.advance
        harness.partition.advance()
        harness.partition._wake()
        await harness.coordination.settle()
        assert harness.values == {"a": "1"}

    harness.run(scenario)


def test_loading_rereads_a_file_that_is_closed_meanwhile() -> None:
    harness = ShardHarness()

    async def scenario() -> None:
        await harness.send_request("set", "a", "1")
        log = harness.partition.log
        read = harness.partition.log.read
        reads: list[File] = []

        def read_and_close_once(*args: int) -> LogRead:
            found = read(*args)
            reads.append(found.range.file)
            if len(reads) == 1:
                found.range.file = harness.partition.log.files.open(found.range.file.path)
                found.range.file.close()
            return found

        log.read = read_and_close_once  # type: ignore[assignment]
        harness.lead(NODE, 1)
        await harness.coordination.settle()
        assert len(reads) == 2 and harness.values == {"a": "1"}

    harness.run(scenario)


def test_a_load_that_failed_on_a_disk_error_is_retried_after_five_seconds() -> None:
    """Guard against seed 443 of the transaction simulator: groups were unavailable until the node restarted."""
    harness = ShardHarness()

    async def scenario() -> None:
        await harness.send_request("set", "a", "1")
        harness.lead(OTHER, 1)
        read = harness.partition.log.read
        harness.partition.log.read = broken  # type: ignore[assignment]
        harness.lead(NODE, 2)
        await harness.coordination.settle()
        assert await harness.refusal("set", "b", "2") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        harness.partition.log.read = read
        await asyncio.sleep(LOAD_AGAIN_S + 0.1)
        assert await harness.send_request("set", "b", "2") == "b is set"
        assert dict(harness.coordination.machine_of("group").values) == {"a": "1", "b": "2"}

    def broken(*_: int) -> None:
        raise OSError(5, "Input/output error")

    harness.run(scenario)


def test_a_fast_read_sees_only_committed_values_and_may_arm_a_timer() -> None:
    harness = ShardHarness()

    def look(register: Register, key: str, now_ms: int, arm: Callable[..., Any]) -> str | None:
        arm((key, "by a glance"), now_ms + 1000)
        return register.values.get(key)

    def without_decision(key: str) -> str | None:
        return harness.coordination.without_decision("group", look, key)

    async def scenario() -> None:
        assert without_decision("a") is None
        await harness.send_request("set", "a", "1")
        assert without_decision("a") == "1"
        assert await harness.coordination.decide("group", ("wait", "a")) == "by a glance"
        harness.partition.advance = lambda: None  # simulates a follower that has not fetched yet
        waiting = harness.coordination.decide("group", ("set", "a", "2"))
        assert without_decision("a") is None
        harness.partition.go_offline("its disk has failed")
        assert without_decision("a") is None
        with pytest.raises(KafkaError):
            await waiting

    harness.run(scenario)


def test_shards_are_loaded_one_at_a_time() -> None:
    harness = ShardHarness()

    async def scenario() -> None:
        await harness.send_request("set", "a", "1")
        async with harness.coordination._turns:  # another shard is loading
            harness.lead(NODE, 1)
            await _turns()
            assert await harness.refusal("set", "b", "2") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await harness.coordination.settle()
        assert harness.values == {"a": "1"}

    harness.run(scenario)


def test_a_log_whose_last_records_were_compacted_away_is_loaded() -> None:
    harness = ShardHarness()

    async def scenario() -> None:
        await harness.send_request("set", "a", "1")
        await harness.send_request("set", "a", "2")
        log, read = harness.partition.log, harness.partition.log.read

        def read_compacted(offset: int, size: int, upper: int) -> LogRead:
            return read(offset, size, 1) if offset == 0 else read(log.log_end, size, upper)

        log.read = read_compacted  # type: ignore[assignment]
        harness.lead(NODE, 1)
        await harness.coordination.settle()
        assert harness.values == {"a": "1"}

    harness.run(scenario)


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
