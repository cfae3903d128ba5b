"""Random keyed logs, cleaned repeatedly between writes and compared with a model, and a crash at every disk operation."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

from compaction_samples import COMPACTED, HOUR_MS, LIMITS, batches, clean, data_records, put
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from storage_samples import NOW_MS, PARTITION, append_marker, sync
from testkit.simulator.disk import SimulatedFiles

from headrace.records.compression import Codec
from headrace.records.record import Record
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig

DIRECTORY = f"/data/{PARTITION}"
KEYS = 6
CLEAN, RESTART, ROLL = "clean", "restart", "roll"


def open_on(files: SimulatedFiles, config: LogConfig = COMPACTED, **options: Any) -> Log:
    options.setdefault("recovery_point", 0)
    return Log.open(files, DIRECTORY, PARTITION, config, now_ms=NOW_MS, **options)[0]


class Twin:
    """What was written, and what a read_committed reader may rely on: the newest decided record of every key."""

    def __init__(self) -> None:
        self.written: dict[int, Record] = {}
        self.undecided: dict[int, list[int]] = {}
        self.aborted: set[int] = set()

    def newest(self, below: int) -> dict[bytes, Record]:
        found: dict[bytes, Record] = {}
        for offset in sorted(self.written):
            record = self.written[offset]
            if offset < below and offset not in self.aborted and record.key is not None:
                found[record.key] = record
        return found

    def check(self, log: Log, *, gone_ms: int | None = None) -> None:
        """Check that all records are as written and that each key's newest is there once, except expired tombstones."""
        found = data_records(log)
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets)), offsets
        for record in found:
            assert record == self.written[record.offset]
        there = {record.offset: record for record in found}
        for record in self.newest(log.log_end).values():
            may_be_gone = record.value is None and gone_ms is not None and record.offset < log.cleaned_to
            assert record.offset in there or may_be_gone, f"{record} is lost"
        newest = self.newest(log.cleaned_to)
        for record in found:
            if record.offset < log.cleaned_to:
                assert record.offset not in self.aborted and record == newest[record.key or b""], f"{record} is old"


class Stage:
    def __init__(self, chance: Random, files: SimulatedFiles, config: LogConfig) -> None:
        self.chance = chance
        self.files = files
        self.config = config
        self.twin = Twin()
        self.sequences: dict[int, int] = {}
        self.log = open_on(files, config)

    def write(self) -> None:
        chance, count = self.chance, self.chance.randint(1, 4)
        pairs: list[tuple[bytes, bytes | None]] = [
            (
                b"key-%d" % chance.randrange(KEYS),
                None if chance.random() < 0.2 else chance.randbytes(chance.randint(0, 60)),
            )
            for _ in range(count)
        ]
        options: dict[str, Any] = {"codec": chance.choice(list(Codec)) if chance.random() < 0.4 else Codec.NONE}
        producer = chance.choice([None, 1, 2, 3, 4])
        if producer is not None:
            sequence = self.sequences.get(producer, 0)
            options |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            options["transactional"] = producer > 2
            self.sequences[producer] = sequence + count
        timestamp = NOW_MS + chance.randint(-1000, 1000)
        first = put(self.log, *pairs, timestamp=timestamp, **options)
        for delta, (key, value) in enumerate(pairs):
            self.twin.written[first + delta] = Record(first + delta, timestamp, key, value)
        if producer is not None and producer > 2:
            self.twin.undecided.setdefault(producer, []).extend(range(first, first + count))
        if self.twin.undecided and chance.random() < 0.4:
            self.decide(chance.choice(sorted(self.twin.undecided)))

    def decide(self, producer: int) -> None:
        commit = self.chance.random() < 0.5
        append_marker(self.log, producer, 0, commit=commit)
        offsets = self.twin.undecided.pop(producer)
        if not commit:
            self.twin.aborted.update(offsets)

    def producers(self) -> dict[int, tuple[int, int, int]]:
        return {
            entry.producer_id: (entry.epoch, entry.last_sequence, entry.transaction_first_offset)
            for entry in self.log.producers.entries()
        }

    def restart(self) -> None:
        producers, end, cleaned_to = self.producers(), self.log.log_end, self.log.cleaned_to
        if self.chance.random() < 0.5:
            self.log.close()
            self.files.process_crash()
            self.log = open_on(self.files, self.config, recovery_point=end, clean=True)
        else:
            self.files.process_crash()
            for name in self.files.list_dir(DIRECTORY):
                if name.endswith(".snapshot"):  # only the batches are left to rebuild the state from
                    self.files.remove(f"{DIRECTORY}/{name}")
            self.log = open_on(self.files, self.config)
        self.log.cleaned_to = cleaned_to
        assert self.log.log_end == end and self.producers() == producers


@given(st.integers(0, 2**32), st.sampled_from([400, 1500, 10**6]), st.sampled_from([40, 1500]))
@settings(deadline=None, max_examples=60)
def test_random_logs_keep_the_newest_of_every_key(seed: int, segment_bytes: int, map_slots: int) -> None:
    chance = Random(seed)
    config = replace(COMPACTED, segment_bytes=segment_bytes)
    limits = replace(LIMITS, map_bytes=map_slots * 24)
    stage = Stage(chance, SimulatedFiles(chance), config)
    now_ms, gone_ms = NOW_MS, None
    for _ in range(chance.randint(5, 60)):
        stage.write()
        deed = chance.choice([CLEAN, RESTART, ROLL, None, None, None, None])
        if deed == RESTART:
            stage.restart()
        elif deed is not None:
            stage.log.roll(NOW_MS)
            if deed == CLEAN:
                if chance.random() < 0.3:
                    now_ms += HOUR_MS
                    gone_ms = now_ms
                clean(stage.log, now_ms, limits)
                stage.twin.check(stage.log, gone_ms=gone_ms)
    for producer in sorted(stage.twin.undecided):
        stage.decide(producer)
    stage.log.roll(NOW_MS)
    clean(stage.log, now_ms, limits)
    stage.twin.check(stage.log, gone_ms=gone_ms)
    stage.restart()
    stage.twin.check(stage.log, gone_ms=gone_ms)
    _check_aborted(stage)


def _check_aborted(stage: Stage) -> None:
    """Check that the aborted list covers all remaining records of aborted transactions."""
    listed = stage.log.aborted_transactions(0, stage.log.log_end)
    for header, records in batches(stage.log):
        if (
            header.is_transactional
            and not header.is_control
            and any(one.offset in stage.twin.aborted for one in records)
        ):
            assert any(
                one.producer_id == header.producer_id and one.first_offset <= header.base_offset <= one.last_offset
                for one in listed
            )


class Crash(Exception):
    """Raised in place of the process's end."""


def test_a_crash_at_any_operation_leaves_the_old_or_the_new() -> None:
    for seed, power in ((0, False), (1, True), (2, True)):
        number = 0
        while _crash_at(seed, number, power_loss=power):
            number += 1
        assert number > 40


def _crash_at(seed: int, number: int, *, power_loss: bool) -> bool:
    """Crash at one disk operation; return False once a whole cleaning takes fewer operations than that."""
    chance = Random(seed)
    files = SimulatedFiles(chance)
    files.make_dirs("/data")
    files.sync_dir("/")
    stage = Stage(chance, files, replace(COMPACTED, segment_bytes=700))
    for _ in range(25):
        stage.write()
    for producer in sorted(stage.twin.undecided):
        stage.decide(producer)
    stage.log.roll(NOW_MS)
    sync(stage.log)
    recovery_point, end, producers = stage.log.recovery_point, stage.log.log_end, stage.producers()
    left = number

    def fault(operation: str, path: str) -> OSError | None:
        nonlocal left
        if operation in ("create", "append", "truncate", "rename", "remove", "sync", "sync_dir"):
            left -= 1
            if left < 0:
                raise Crash
        return None

    files.fault = fault
    crashed = False
    try:
        clean(stage.log)
    except Crash:
        crashed = True
    files.fault = None
    (files.power_loss if power_loss else files.process_crash)()
    stage.log = open_on(files, stage.config, recovery_point=recovery_point)
    assert stage.log.log_end == end and stage.producers() == producers
    stage.twin.check(stage.log)
    names = files.list_dir(DIRECTORY)
    assert not [name for name in names if name.endswith((".swap", ".cleaned", ".deleted"))]
    # From here the log can be cleaned to the end.
    clean(stage.log)
    stage.twin.check(stage.log)
    assert stage.log.cleaned_to == end
    return crashed


def test_a_disk_that_is_full_leaves_the_log_as_it_is() -> None:
    chance = Random(1)
    files = SimulatedFiles(chance)
    stage = Stage(chance, files, COMPACTED)
    for _ in range(60):
        stage.write()
    for producer in sorted(stage.twin.undecided):
        stage.decide(producer)
    stage.log.roll(NOW_MS)
    before = [record for _, records in batches(stage.log) for record in records]
    files.capacity = files.used() + 100
    try:
        clean(stage.log)
    except OSError as error:
        assert error.errno == errno.ENOSPC
    else:
        raise AssertionError("there was no room for it")
    stage.log.check()
    assert [record for _, records in batches(stage.log) for record in records] == before
    assert not [name for name in files.list_dir(DIRECTORY) if name.endswith(".cleaned")]
    files.capacity = None
    clean(stage.log)
    stage.twin.check(stage.log)
