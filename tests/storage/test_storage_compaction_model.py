"""Random keyed logs, cleaned repeatedly between writes and compared with a model, and a crash at every disk operation."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from testkit.simulator.disk import SimulatedFiles
from tests.storage.compaction_samples import COMPACTED, HOUR_MS, LIMITS, batches, clean, data_records, put
from tests.storage.storage_samples import NOW_MS, PARTITION, append_marker, sync

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


class CompactionModel:
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

    def check(self, log: Log, *, expired_ms: int | None = None) -> None:
        """Check that all records are as written and that each key's newest is there once, except expired tombstones."""
        found = data_records(log)
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets)), offsets
        for record in found:
            assert record == self.written[record.offset]
        there = {record.offset: record for record in found}
        for record in self.newest(log.log_end).values():
            may_be_removed = record.value is None and expired_ms is not None and record.offset < log.cleaned_to
            assert record.offset in there or may_be_removed, f"{record} is lost"
        newest = self.newest(log.cleaned_to)
        for record in found:
            if record.offset < log.cleaned_to:
                assert record.offset not in self.aborted and record == newest[record.key or b""], f"{record} is old"


class LogHarness:
    def __init__(self, rng: Random, files: SimulatedFiles, config: LogConfig) -> None:
        self.rng = rng
        self.files = files
        self.config = config
        self.model = CompactionModel()
        self.sequences: dict[int, int] = {}
        self.log = open_on(files, config)

    def write(self) -> None:
        rng, count = self.rng, self.rng.randint(1, 4)
        pairs: list[tuple[bytes, bytes | None]] = [
            (
                b"key-%d" % rng.randrange(KEYS),
                None if rng.random() < 0.2 else rng.randbytes(rng.randint(0, 60)),
            )
            for _ in range(count)
        ]
        options: dict[str, Any] = {"codec": rng.choice(list(Codec)) if rng.random() < 0.4 else Codec.NONE}
        producer = rng.choice([None, 1, 2, 3, 4])
        if producer is not None:
            sequence = self.sequences.get(producer, 0)
            options |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            options["transactional"] = producer > 2
            self.sequences[producer] = sequence + count
        timestamp = NOW_MS + rng.randint(-1000, 1000)
        first = put(self.log, *pairs, timestamp=timestamp, **options)
        for delta, (key, value) in enumerate(pairs):
            self.model.written[first + delta] = Record(first + delta, timestamp, key, value)
        if producer is not None and producer > 2:
            self.model.undecided.setdefault(producer, []).extend(range(first, first + count))
        if self.model.undecided and rng.random() < 0.4:
            self.decide(rng.choice(sorted(self.model.undecided)))

    def decide(self, producer: int) -> None:
        commit = self.rng.random() < 0.5
        append_marker(self.log, producer, 0, commit=commit)
        offsets = self.model.undecided.pop(producer)
        if not commit:
            self.model.aborted.update(offsets)

    def producers(self) -> dict[int, tuple[int, int, int]]:
        return {
            entry.producer_id: (entry.epoch, entry.last_sequence, entry.transaction_first_offset)
            for entry in self.log.producers.entries()
        }

    def restart(self) -> None:
        producers, end, cleaned_to = self.producers(), self.log.log_end, self.log.cleaned_to
        if self.rng.random() < 0.5:
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
def test_cleaning_random_logs_keeps_the_newest_record_of_every_key(
    seed: int, segment_bytes: int, map_slots: int
) -> None:
    rng = Random(seed)
    config = replace(COMPACTED, segment_bytes=segment_bytes)
    limits = replace(LIMITS, map_bytes=map_slots * 24)
    harness = LogHarness(rng, SimulatedFiles(rng), config)
    now_ms, expired_ms = NOW_MS, None
    for _ in range(rng.randint(5, 60)):
        harness.write()
        action = rng.choice([CLEAN, RESTART, ROLL, None, None, None, None])
        if action == RESTART:
            harness.restart()
        elif action is not None:
            harness.log.roll(NOW_MS)
            if action == CLEAN:
                if rng.random() < 0.3:
                    now_ms += HOUR_MS
                    expired_ms = now_ms
                clean(harness.log, now_ms, limits)
                harness.model.check(harness.log, expired_ms=expired_ms)
    for producer in sorted(harness.model.undecided):
        harness.decide(producer)
    harness.log.roll(NOW_MS)
    clean(harness.log, now_ms, limits)
    harness.model.check(harness.log, expired_ms=expired_ms)
    harness.restart()
    harness.model.check(harness.log, expired_ms=expired_ms)
    _check_aborted(harness)


def _check_aborted(harness: LogHarness) -> None:
    """Check that the aborted list covers all remaining records of aborted transactions."""
    listed = harness.log.aborted_transactions(0, harness.log.log_end)
    for header, records in batches(harness.log):
        if (
            header.is_transactional
            and not header.is_control
            and any(one.offset in harness.model.aborted for one in records)
        ):
            assert any(
                one.producer_id == header.producer_id and one.first_offset <= header.base_offset <= one.last_offset
                for one in listed
            )


class Crash(Exception):
    """Raised in place of the process's end."""


def test_a_crash_at_any_disk_operation_of_a_cleaning_loses_no_records() -> None:
    for seed, power in ((0, False), (1, True), (2, True)):
        number = 0
        while _crash_at(seed, number, power_loss=power):
            number += 1
        assert number > 40


def _crash_at(seed: int, number: int, *, power_loss: bool) -> bool:
    """Crash at one disk operation; return False once a whole cleaning takes fewer operations than that."""
    rng = Random(seed)
    files = SimulatedFiles(rng)
    files.make_dirs("/data")
    files.sync_dir("/")
    harness = LogHarness(rng, files, replace(COMPACTED, segment_bytes=700))
    for _ in range(25):
        harness.write()
    for producer in sorted(harness.model.undecided):
        harness.decide(producer)
    harness.log.roll(NOW_MS)
    sync(harness.log)
    recovery_point, end, producers = harness.log.recovery_point, harness.log.log_end, harness.producers()
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
        clean(harness.log)
    except Crash:
        crashed = True
    files.fault = None
    (files.power_loss if power_loss else files.process_crash)()
    harness.log = open_on(files, harness.config, recovery_point=recovery_point)
    assert harness.log.log_end == end and harness.producers() == producers
    harness.model.check(harness.log)
    names = files.list_dir(DIRECTORY)
    assert not [name for name in names if name.endswith((".swap", ".cleaned", ".deleted"))]
    # From here the log can be cleaned to the end.
    clean(harness.log)
    harness.model.check(harness.log)
    assert harness.log.cleaned_to == end
    return crashed


def test_cleaning_on_a_full_disk_leaves_the_log_unchanged() -> None:
    rng = Random(1)
    files = SimulatedFiles(rng)
    harness = LogHarness(rng, files, COMPACTED)
    for _ in range(60):
        harness.write()
    for producer in sorted(harness.model.undecided):
        harness.decide(producer)
    harness.log.roll(NOW_MS)
    before = [record for _, records in batches(harness.log) for record in records]
    files.capacity = files.used() + 100
    try:
        clean(harness.log)
    except OSError as error:
        assert error.errno == errno.ENOSPC
    else:
        raise AssertionError("there was no room for it")
    harness.log.check()
    assert [record for _, records in batches(harness.log) for record in records] == before
    assert not [name for name in files.list_dir(DIRECTORY) if name.endswith(".cleaned")]
    files.capacity = None
    clean(harness.log)
    harness.model.check(harness.log)
