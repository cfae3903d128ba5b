"""A state machine on the local leader of a partition: replies after the commit, loading, and loss of leadership."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from testkit.simulator.loop import SimulatedLoop
from tests.replication.replication_samples import NODE, NOW_MS, TOPIC_ID, make_files, make_partition

from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.broker.shard_runner import LOAD_AGAIN_S, Coordination
from headrace.coordinators.partitioning import coordinator_partition, java_hash
from headrace.metadata.image import Image, Topic
from headrace.metadata.image import Partition as PartitionState
from headrace.records.batch import read_header
from headrace.records.builder import build_batch
from headrace.records.record import Record
from headrace.statemachine.undo import Table, UndoLog

OTHER = 2


class Register:
    """A key-value state machine: `set` replies to a parked `wait` for the key, `later` sets it by a timer."""

    def __init__(self):
        self.undo = UndoLog()
        self.values = Table(self.undo)
        self.waiting = Table(self.undo)

    def decide(self, request, now_ms, tx):
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

    def _set(self, key, value, tx):
        tx.emit((key, value))
        ticket = self.waiting.get(key)
        if ticket is not None:
            del self.waiting[key]
            tx.reply(ticket, value)

    def apply(self, record, offset):
        self.values[record[0]] = record[1]

    def on_timer(self, timer, now_ms, tx):
        self._set(*timer, tx)

    def on_leading(self, now_ms, tx):
        pass


def encode(record):
    return record[0].encode(), record[1].encode()


def decode(key, value):
    if key == b"!":
        raise CorruptData("this cannot be read")
    return None if key == b"?" else (key.decode(), value.decode())


class Clock:
    def __init__(self, loop):
        self._loop = loop

    def now_ms(self):
        return NOW_MS + int(self._loop.time() * 1000)


class Stage:
    def __init__(self, seed=1):
        self.loop = SimulatedLoop(Random(seed))
        self.partition = make_partition(make_files())
        state = PartitionState(replicas=(NODE,), isr=(NODE,), leader=NODE, leader_epoch=0, partition_epoch=0)
        image = Image(topics={"t": Topic("t", TOPIC_ID, (state,))})
        self.coordination = Coordination("t", Register, encode, decode, lambda: image, Clock(self.loop), self.loop)

    def run(self, story):
        async def whole():
            self.coordination.elected(self.partition)
            await self.coordination.settle()
            await story()
            self.coordination.close()

        self.loop.run_until_complete(whole())
        self.loop.close()
        assert self.loop.errors == []

    async def ask(self, *request):
        return await self.coordination.decide("group", request)

    async def refusal(self, *request):
        with pytest.raises(KafkaError) as caught:
            await self.ask(*request)
        return caught.value.code

    def lead(self, leader, epoch, isr=(NODE,)):
        self.partition.lead(leader, epoch, isr)
        self.coordination.elected(self.partition)

    @property
    def values(self):
        return dict(self.coordination.machine_of("group").values.items())


def test_a_group_lies_where_java_puts_it():
    assert [java_hash(text) for text in ("", "a", "group", "\U0001f600", "polygenelubricants")] == [
        0, 97, 98629247, 1772899, -(2**31),
    ]  # fmt: skip
    assert coordinator_partition("polygenelubricants", 50) == 0 and coordinator_partition("group", 50) == 47


def test_what_was_answered_is_in_the_log_and_found_again():
    stage = Stage()

    async def story():
        assert await stage.ask("set", "a", "1") == "a is set"
        assert await stage.refusal("fail", "b") is ErrorCode.INVALID_REQUEST
        assert await stage.ask("set", "c", "2") == "c is set"
        assert stage.values == {"a": "1", "c": "2"} and stage.partition.log.log_end == 2
        stage.lead(NODE, 1)
        assert await stage.refusal("set", "d", "3") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await stage.coordination.settle()
        assert stage.values == {"a": "1", "c": "2"}

    stage.run(story)


def test_everybody_who_waits_is_refused_when_leadership_goes():
    stage = Stage()

    async def story():
        waiting = stage.coordination.decide("group", ("wait", "a"))
        stage.lead(OTHER, 1)
        with pytest.raises(KafkaError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.NOT_COORDINATOR
        assert await stage.refusal("set", "a", "1") is ErrorCode.NOT_COORDINATOR
        stage.lead(NODE, 2)
        await stage.coordination.settle()
        waiting = stage.coordination.decide("group", ("wait", "a"))
        await stage.ask("set", "a", "1")
        assert await waiting == "1"

    stage.run(story)


def test_a_partition_that_changes_hands_under_a_shard_is_noticed_without_being_told():
    stage = Stage()

    async def story():
        waiting = stage.coordination.decide("group", ("wait", "a"))
        stage.partition.go_offline("its disk has failed")
        with pytest.raises(KafkaError):
            await waiting
        assert await stage.refusal("set", "a", "1") is ErrorCode.NOT_COORDINATOR

    stage.run(story)


def test_a_refused_write_changes_nothing():
    stage = Stage()

    async def story():
        await stage.ask("set", "a", "1")
        stage.partition.configure(2)  # min.insync.replicas above the replica count
        assert await stage.refusal("set", "a", "2") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert stage.values == {"a": "1"}
        stage.partition.configure(1)
        await stage.ask("set", "a", "3")
        assert stage.values == {"a": "3"}

    stage.run(story)


def test_timers_write_too_and_end_with_leadership():
    stage = Stage()

    async def story():
        assert await stage.ask("later", "a", "1") == "armed"
        assert await stage.coordination.decide("group", ("wait", "a")) == "1"
        assert stage.loop.time() >= 1.0
        await stage.ask("later", "a", "2")
        stage.lead(OTHER, 1)
        stage.lead(NODE, 2)
        await stage.coordination.settle()
        assert await stage.ask("later", "b", "3") == "armed"
        await stage.coordination.decide("group", ("wait", "b"))
        assert stage.values == {"a": "1", "b": "3"}

    stage.run(story)


def test_unknown_records_are_passed_over_and_damage_closes_one_shard():
    stage = Stage()
    for key in (b"?", b"a", b"?"):
        batch = build_batch([Record(0, NOW_MS, key, b"1")])
        stage.partition.append(memoryview(batch), read_header(batch), NOW_MS, NOW_MS)

    async def story():
        assert stage.values == {"a": "1"}
        batch = build_batch([Record(0, NOW_MS, b"!", b"1")])
        stage.partition.append(memoryview(batch), read_header(batch), NOW_MS, NOW_MS)
        stage.lead(NODE, 2)
        await stage.coordination.settle()
        assert await stage.refusal("set", "a", "2") is ErrorCode.COORDINATOR_NOT_AVAILABLE

    stage.run(story)


def test_an_answer_waits_for_the_commit():
    stage = Stage()

    async def story():
        stage.partition.advance = lambda: None  # simulates a follower that has not fetched yet
        waiting = stage.coordination.decide("group", ("set", "a", "1"))
        await _turns()
        assert not waiting.done() and stage.coordination.machine_of("group").values.committed("a") is None
        del stage.partition.advance
        stage.partition.advance()
        stage.partition._wake()
        assert await waiting == "a is set"
        assert stage.coordination.machine_of("group").values.committed("a") == "1"

    stage.run(story)


def test_what_an_earlier_term_wrote_is_loaded_once_it_is_committed():
    stage = Stage()

    async def story():
        stage.partition.advance = lambda: None  # simulates records that are not on disk yet
        waiting = stage.coordination.decide("group", ("set", "a", "1"))
        stage.lead(OTHER, 1)
        with pytest.raises(KafkaError):
            await waiting
        stage.lead(NODE, 2)
        await _turns()
        assert await stage.refusal("set", "b", "2") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        del stage.partition.advance
        stage.partition.advance()
        stage.partition._wake()
        await stage.coordination.settle()
        assert stage.values == {"a": "1"}

    stage.run(story)


def test_a_file_that_is_replaced_while_it_is_loaded_is_read_again():
    stage = Stage()

    async def story():
        await stage.ask("set", "a", "1")
        log, read, reads = stage.partition.log, stage.partition.log.read, []

        def read_and_close_once(*args):
            found = read(*args)
            reads.append(found.range.file)
            if len(reads) == 1:
                found.range.file = stage.partition.log.files.open(found.range.file.path)
                found.range.file.close()
            return found

        log.read = read_and_close_once
        stage.lead(NODE, 1)
        await stage.coordination.settle()
        assert len(reads) == 2 and stage.values == {"a": "1"}

    stage.run(story)


def test_a_disk_that_fails_once_costs_a_shard_five_seconds():
    """Guard against seed 443 of the transaction simulator: groups were unavailable until the node restarted."""
    stage = Stage()

    async def story():
        await stage.ask("set", "a", "1")
        stage.lead(OTHER, 1)
        read = stage.partition.log.read
        stage.partition.log.read = broken
        stage.lead(NODE, 2)
        await stage.coordination.settle()
        assert await stage.refusal("set", "b", "2") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        stage.partition.log.read = read
        await asyncio.sleep(LOAD_AGAIN_S + 0.1)
        assert await stage.ask("set", "b", "2") == "b is set"
        assert dict(stage.coordination.machine_of("group").values) == {"a": "1", "b": "2"}

    def broken(*_):
        raise OSError(5, "Input/output error")

    stage.run(story)


def test_a_glance_sees_what_is_committed_and_may_arm_a_timer():
    stage = Stage()

    def look(register, key, now_ms, arm):
        arm((key, "by a glance"), now_ms + 1000)
        return register.values.get(key)

    def glance(key):
        return stage.coordination.glance("group", look, key)

    async def story():
        assert glance("a") is None
        await stage.ask("set", "a", "1")
        assert glance("a") == "1"
        assert await stage.coordination.decide("group", ("wait", "a")) == "by a glance"
        stage.partition.advance = lambda: None  # simulates a follower that has not fetched yet
        waiting = stage.coordination.decide("group", ("set", "a", "2"))
        assert glance("a") is None
        stage.partition.go_offline("its disk has failed")
        assert glance("a") is None
        with pytest.raises(KafkaError):
            await waiting

    stage.run(story)


def test_shards_are_loaded_in_turns():
    stage = Stage()

    async def story():
        await stage.ask("set", "a", "1")
        async with stage.coordination._turns:  # another shard is loading
            stage.lead(NODE, 1)
            await _turns()
            assert await stage.refusal("set", "b", "2") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await stage.coordination.settle()
        assert stage.values == {"a": "1"}

    stage.run(story)


def test_a_log_whose_last_records_were_compacted_away_is_loaded():
    stage = Stage()

    async def story():
        await stage.ask("set", "a", "1")
        await stage.ask("set", "a", "2")
        log, read = stage.partition.log, stage.partition.log.read
        log.read = lambda offset, size, upper: read(offset, size, 1) if offset == 0 else read(log.log_end, size, upper)
        stage.lead(NODE, 1)
        await stage.coordination.settle()
        assert stage.values == {"a": "1"}

    stage.run(story)


async def _turns():
    for _ in range(20):
        await asyncio.sleep(0)
