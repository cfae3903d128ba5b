"""The examination of a range of a log: every flipped bit that a follower would notice is found, and nothing else is."""

from __future__ import annotations

import pytest
from tests.replication.replication_samples import append, make_files, make_partition

from headrace.records.batch import HEADER_BYTES
from headrace.replication.damage import EXAMINED_BYTES, find_damage
from headrace.replication.partition import SUSPICIOUS_READS

LOG = "/data/t-0/00000000000000000000.log"
LENGTH_AT, MAGIC_AT, CRC_AT = 8, 16, 17


@pytest.mark.parametrize("position", [LENGTH_AT, LENGTH_AT + 3, MAGIC_AT, CRC_AT, 30, HEADER_BYTES + 5])
def test_a_flipped_bit_in_any_batch_is_found(position: int) -> None:
    files = make_files()
    partition = make_partition(files)
    sizes = []
    for _ in range(3):
        sizes.append(partition.log.size)
        append(partition)
    found = partition.log.read(0, EXAMINED_BYTES).range
    assert find_damage(found) is None
    for start in sizes:
        files.flip_bit(LOG, start + position, 6)
        assert find_damage(found) is not None
        files.flip_bit(LOG, start + position, 6)


def test_a_batch_that_exceeds_the_byte_limit_is_no_damage() -> None:
    files = make_files()
    partition = make_partition(files, max_message_bytes=1 << 24)
    append(partition)
    first = partition.log.size
    append(partition, EXAMINED_BYTES // 20)
    read = partition.log.read(0, EXAMINED_BYTES).range
    assert read.size == EXAMINED_BYTES < partition.log.size
    assert find_damage(read) is None
    files.flip_bit(LOG, first - 1, 0)
    assert find_damage(read) is not None


def test_a_log_is_suspicious_when_consumers_read_one_offset_again_and_again() -> None:
    partition = make_partition(make_files())
    append(partition)
    append(partition)
    suspected: list[int] = []
    partition.on_suspicion = suspected.append

    def read(offset: int) -> None:
        partition.plan_read(offset, 1 << 20, committed_only=False, last_fetched_epoch=-1, min_one=True)

    for _ in range(SUSPICIOUS_READS):
        read(0)
        read(1)
    assert suspected == []
    for _ in range(2 * SUSPICIOUS_READS):
        read(0)
        read(2)  # nothing is sent from the log end
    assert suspected == [0, 0]
