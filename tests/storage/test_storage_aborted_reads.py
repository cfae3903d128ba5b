"""The aborted transactions that a reader receives: all that its bytes contain, and few later ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.storage.storage_samples import append, append_marker, make_batch, open_log, segment_files, sync

from headrace.records.batch import iterate_batches
from headrace.storage.file_range import FileRange
from headrace.storage.indexes.aborted_index import AbortedTransaction
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig

PRODUCERS = 6
SPARSE = LogConfig(segment_bytes=4000, index_interval_bytes=400, producer_id_expiration_ms=10**15)


def overlapping_transactions(path: Path, seed: int) -> tuple[Log, list[AbortedTransaction]]:
    """Write a log of concurrent producers, some of whose transactions span segments."""
    rng = random.Random(seed)
    log, _ = open_log(path, SPARSE)
    open_: dict[int, int] = {}
    epochs = dict.fromkeys(range(PRODUCERS), 0)
    aborted: list[AbortedTransaction] = []
    for _ in range(400):
        producer = rng.randrange(PRODUCERS)
        if producer in open_ and rng.random() < 0.4:
            commit = rng.random() < 0.5
            last = append_marker(log, producer, epochs[producer], commit=commit).first_offset
            first = open_.pop(producer)
            if not commit:
                aborted.append(AbortedTransaction(producer, first, last, -1))
            epochs[producer] += 1
        elif producer not in open_:
            batch = make_batch(
                1, producer_id=producer, producer_epoch=epochs[producer], base_sequence=0, transactional=True
            )
            open_[producer] = append(log, batch).first_offset
        else:
            append(log, make_batch(rng.randrange(1, 4)))
    return log, aborted


def offsets_of(read: FileRange) -> tuple[int, int]:
    """Return the first and last offset of the batches that start in the range, including a truncated one."""
    data = read.file.read(read.position, read.size + 4096)
    begun = [header for at, header in iterate_batches(data) if at < read.size]
    return begun[0].base_offset, begun[-1].last_offset


def aborted_in_read(log: Log, offset: int, size: int) -> tuple[set[tuple[int, int]], FileRange]:
    stable = log.last_stable_offset(log.log_end)
    read = log.read(offset, size, stable).range
    return {(one.producer_id, one.first_offset) for one in log.aborted_transactions(offset, stable, read)}, read


@pytest.mark.parametrize("seed", range(4))
def test_a_read_lists_all_overlapping_aborted_transactions_and_few_others(tmp_path: Path, seed: int) -> None:
    log, aborted = overlapping_transactions(tmp_path, seed)
    stable, extra = log.last_stable_offset(log.log_end), 0
    assert len(log.segments.from_offset(0)) > 3 and len(aborted) > 30
    for offset in range(0, stable, 3):
        for size in (1, 300, 2000):
            listed, read = aborted_in_read(log, offset, size)
            first, last = offsets_of(read)
            needed = {
                (one.producer_id, one.first_offset)
                for one in aborted
                if one.last_offset >= max(first, offset) and one.first_offset <= last
            }
            assert needed <= listed
            extra = max(extra, len(listed - needed))
    assert extra <= 8  # from the one index interval that is read too far
    log.close()


def test_a_damaged_offset_index_never_shortens_the_list_of_aborted_transactions(tmp_path: Path) -> None:
    """Check that a flipped bit never makes a reader see aborted records."""
    log, _ = overlapping_transactions(tmp_path, 5)
    expected, _ = aborted_in_read(log, 0, 300)
    sync(log)
    log.close()
    for place in range(8):
        for path in segment_files(tmp_path, ".index")[:1]:
            data = bytearray(path.read_bytes())
            data[place + 8] ^= 0x04
            path.write_bytes(data)
        log, _ = open_log(tmp_path, SPARSE, recovery_point=10**6, clean=True)
        assert aborted_in_read(log, 0, 300)[0] >= expected
        log.close()
