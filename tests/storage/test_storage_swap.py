"""The order of renames and syncs when cleaned segments replace others, on a disk that persists names in any order."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from random import Random

from msgspec.structs import replace
from testkit.simulator.disk import SimulatedFiles
from tests.storage.compaction_samples import COMPACTED, batches, clean, put
from tests.storage.storage_samples import NOW_MS, PARTITION, sync

from headrace.records.batch import BatchHeader
from headrace.records.record import Record
from headrace.storage.log import Log

DIRECTORY = f"/data/{PARTITION}"
RANDOM_SUBSETS = 20

Batches = list[tuple[BatchHeader, list[Record]]]  # batches of all segments; overlapping segments show up as duplicates


def open_on(files: SimulatedFiles, recovery_point: int = 0) -> Log:
    config = replace(COMPACTED, segment_bytes=900)
    return Log.open(files, DIRECTORY, PARTITION, config, recovery_point=recovery_point, now_ms=NOW_MS)[0]


def make_log(files: SimulatedFiles) -> Log:
    """Write small segments left by a first run, and a new one: the next run replaces all, merging the small ones."""
    log = open_on(files)
    for number in range(40):
        put(log, (b"k%d" % (number % 7), b"v" * (10 + number % 3)), (b"k%d" % (number % 2), b"w" * 40))
    log.roll(NOW_MS)
    clean(log)
    for number in range(8):
        put(log, (b"k%d" % (number % 3), b"again"))
    log.roll(NOW_MS)
    put(log, (b"k0", b"in the active segment"))
    sync(log)
    files.sync_dir(DIRECTORY)
    return log


def disks_after_crash(files: SimulatedFiles) -> Iterator[SimulatedFiles]:
    """Yield the disk after each possible loss: all, none, a prefix, one alone, all but one, and random subsets survive."""
    count = files.unsynced_names(DIRECTORY)
    everything = frozenset(range(count))
    few = [frozenset(range(at, at + size)) for size in (0, 1) for at in range(count)]
    chosen = {*few, *(everything - some for some in few), *(frozenset(range(end)) for end in range(count))}
    rng = Random(count)
    chosen |= {frozenset(one for one in everything if rng.random() < 0.5) for _ in range(RANDOM_SUBSETS)}
    for kept in sorted(chosen, key=sorted):
        disk = deepcopy(files)
        disk.lose_names(DIRECTORY, kept)
        yield disk


def between(found: Batches, start: int, end: int) -> Batches:
    return [one for one in found if start <= one[0].base_offset < end]


def test_after_any_crash_during_a_swap_each_offset_range_is_entirely_old_or_new() -> None:
    files = SimulatedFiles(Random(0))
    files.make_dirs("/data")
    files.sync_dir("/")
    log = make_log(files)
    old, old_bases, end = batches(log), log.segments.base_offsets(), log.log_end
    moments: list[SimulatedFiles] = []

    def before_each_sync(operation: str, path: str) -> None:
        # No name is durable until the next sync, so this state covers every crash since the last one.
        if operation == "sync_dir":
            moments.append(deepcopy(files))
            moments[-1].fault = None

    files.fault = before_each_sync
    clean(log)
    files.fault = None
    moments.append(files)
    new, bases = batches(log), log.segments.base_offsets()
    places = list(zip(bases, [*bases[1:], end], strict=True))
    changed = [start for start, following in places if between(old, start, following) != between(new, start, following)]
    assert len(changed) > 1 and len(bases) < len(old_bases)
    seen: set[tuple[int, bool]] = set()
    for disk in [disk for moment in moments for disk in disks_after_crash(moment)]:
        found = open_on(disk, end)
        found.check()
        left = batches(found)
        assert found.log_end == end and found.log_start == 0
        for place in places:
            here = between(left, *place)
            assert here in (between(old, *place), between(new, *place)), f"{place}: neither, or both"
            seen.add((place[0], here == between(new, *place)))
        assert not [one for one in disk.list_dir(DIRECTORY) if one.endswith((".swap", ".cleaned", ".deleted"))]
    assert seen >= {(start, is_new) for start in changed for is_new in (False, True)}
