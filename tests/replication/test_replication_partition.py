"""One partition: deletion of records by offset, offsets by time, a full disk and a failed disk."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from testkit.simulator.disk import SimulatedFiles
from tests.replication.replication_samples import NOW_MS, append, elect, make_files, make_partition

from headrace.base.errors import ErrorCode, KafkaError
from headrace.replication.partition import (
    ALL_RECORDS,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    Partition,
)
from headrace.storage.retention import SEGMENTS_AT_ONCE


def read(partition: Partition, offset: int) -> bytes:
    plan = partition.plan_read(offset, 10_000, committed_only=False, last_fetched_epoch=-1, min_one=True)
    return b"" if plan.range is None else plan.range.read()


def fail_operations(files: SimulatedFiles, *operations: str, number: int = errno.EIO) -> None:
    files.fault = lambda operation, path: OSError(number, "refused", path) if operation in operations else None


def test_records_are_deleted_up_to_the_high_watermark() -> None:
    partition = make_partition(make_files())
    for _ in range(4):
        append(partition, 5)
        partition.log.roll(NOW_MS)
    assert partition.delete_records(7, NOW_MS) == 7
    assert partition.log.segments.base_offsets() == [5, 10, 15, 20]  # the segment with offset 7 stays
    assert partition.delete_records(3, NOW_MS) == 7  # the log start never moves back
    with pytest.raises(KafkaError) as caught:
        read(partition, 6)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    for wrong in (21, -2):
        with pytest.raises(KafkaError, match="up to the high watermark 20") as caught:
            partition.delete_records(wrong, NOW_MS)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert partition.delete_records(ALL_RECORDS, NOW_MS) == 20
    assert partition.find_offset(EARLIEST, committed_only=False) == (20, -1, 0)
    assert append(partition).first_offset == 20


def test_deleting_records_of_a_compacted_topic_is_a_policy_violation() -> None:
    partition = make_partition(make_files(), cleanup_policy=("compact",))
    append(partition)
    with pytest.raises(KafkaError) as caught:
        partition.delete_records(1, NOW_MS)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert make_partition(make_files(), cleanup_policy=()).delete_records(0, NOW_MS) == 0


def test_deleting_records_removes_a_limited_number_of_segments_at_once() -> None:
    partition = make_partition(make_files())
    for _ in range(3 * SEGMENTS_AT_ONCE):
        append(partition)
        partition.log.roll(NOW_MS)
    partition.delete_records(ALL_RECORDS, NOW_MS)
    assert len(partition.log.segments) == 2 * SEGMENTS_AT_ONCE + 1
    assert partition.log.log_start == 3 * SEGMENTS_AT_ONCE


def test_special_timestamps_give_kafkas_offsets_without_tiered_storage() -> None:
    partition = make_partition(make_files())
    append(partition, 3)

    def find(timestamp: int) -> tuple[int, int, int] | None:
        return partition.find_offset(timestamp, committed_only=False)

    assert find(LATEST) == (3, -1, 0)
    assert find(EARLIEST) == find(EARLIEST_LOCAL) == (0, -1, 0)
    assert find(MAX_TIMESTAMP) == (0, NOW_MS, 0)
    assert find(LATEST_TIERED) == find(EARLIEST_PENDING_UPLOAD) == (-1, -1, -1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_a_full_disk_refuses_appends_serves_reads_and_recovers_when_there_is_space(number: int) -> None:
    files = make_files()
    partition = make_partition(files, segment_bytes=400)
    append(partition, 2)
    expected = read(partition, 0)
    fail_operations(files, "append", "create", "make_dir", number=number)
    for _ in range(5):
        with pytest.raises(KafkaError) as caught:
            append(partition, 2)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert read(partition, 0) == expected
        partition.log.check()
    assert partition.offline is None and partition.is_leader
    files.fault = None
    for number_appended in range(2, 40, 2):
        assert append(partition, 2).first_offset == number_appended  # across several rolls


def test_a_batch_refused_by_a_full_disk_is_no_duplicate_when_retried() -> None:
    files = make_files()
    partition = make_partition(files)
    append(partition)
    fail_operations(files, "append", number=errno.ENOSPC)
    producer = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    with pytest.raises(KafkaError):
        append(partition, **producer)
    files.fault = None
    assert not append(partition, **producer).duplicate


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENOENT])
def test_a_failed_write_takes_the_partition_offline(number: int) -> None:
    files = make_files()
    partition = make_partition(files)
    append(partition)
    woken: list[bool] = []
    partition.watch(lambda: woken.append(True))
    fail_operations(files, "append", number=number)
    with pytest.raises(KafkaError) as caught:
        append(partition)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR and woken == [True]
    files.fault = None
    attempts: tuple[Callable[[], object], ...] = (
        lambda: partition.admit(1),
        lambda: partition.check_leader(),
        lambda: partition.delete_records(1, 0),
    )
    for attempt in attempts:
        with pytest.raises(KafkaError) as caught:
            attempt()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    elect(partition, 1, 7, (1,))  # whatever the metadata says
    assert not partition.is_leader


def test_a_disk_failure_is_reported_to_the_failure_callback() -> None:
    files = make_files()
    partition = make_partition(files)
    reported: list[int | None] = []

    def fail(error: OSError) -> None:
        reported.append(error.errno)
        partition.go_offline("/data has failed")

    partition.on_failure = fail
    fail_operations(files, "append")
    with pytest.raises(KafkaError, match="t-0 is offline: /data has failed"):
        append(partition)
    assert reported == [errno.EIO]
