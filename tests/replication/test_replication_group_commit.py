"""`flush.messages`: acknowledged records are on disk, and many producers share one fsync."""

from __future__ import annotations

import asyncio
import errno
from random import Random
from typing import Any

import pytest
from testkit.simulator.disk import SimulatedFiles
from testkit.simulator.loop import SimulatedLoop
from tests.replication.replication_samples import NOW_MS, append, make_files, make_partition

from headrace.base.errors import ErrorCode


def count_syncs(files: SimulatedFiles) -> list[str]:
    syncs: list[str] = []

    def note(operation: str, path: str) -> OSError | None:
        if operation == "sync" and path.endswith(".log"):
            syncs.append(path)
        return None

    files.fault = note
    return syncs


def fail_operation(files: SimulatedFiles, operation: str, number: int, suffix: str = "") -> None:
    def refuse(attempted: str, path: str) -> OSError | None:
        return OSError(number, "refused", path) if attempted == operation and path.endswith(suffix) else None

    files.fault = refuse


def test_appends_do_not_wait_for_the_disk_without_flush_messages() -> None:
    partition = make_partition(make_files(), SimulatedLoop(Random(1)))
    info = append(partition)
    assert not partition.waits_for_disk and partition.flushed(info.last_offset) is None
    assert partition.high_watermark == 1


def test_appends_during_an_fsync_share_the_next_one() -> None:
    loop, files = SimulatedLoop(Random(1)), make_files()
    partition = make_partition(files, loop, flush_messages=1)
    syncs = count_syncs(files)
    assert partition.waits_for_disk

    async def main() -> None:
        first = partition.flushed(append(partition).last_offset)
        rest = [partition.flushed(append(partition, 2).last_offset) for _ in range(10)]
        assert first is not None and None not in rest and len(set(rest)) == 1
        assert (partition.high_watermark, partition.is_held) == (0, True)  # records are not visible yet
        assert await first is None
        assert (partition.log.recovery_point, partition.high_watermark) == (1, 1)
        shared = rest[0]
        assert shared is not None and await shared is None
        assert (partition.log.recovery_point, partition.high_watermark) == (21, 21)
        assert len(syncs) == 2 and not partition.is_held
        assert partition.flushed(20) is None

    loop.run_until_complete(main())
    loop.close()


@pytest.mark.parametrize("seed", range(30))
def test_acknowledged_records_survive_a_power_loss(seed: int) -> None:
    loop, files = SimulatedLoop(Random(seed)), make_files()
    partition = make_partition(files, loop, flush_messages=1)
    acknowledged: list[int] = []

    async def main() -> None:
        waiting: list[tuple[int, asyncio.Future[Any]]] = []
        for _ in range(1 + seed % 7):
            info = append(partition)
            waiting.append((info.last_offset, partition.flushed(info.last_offset)))
        for offset, flush in waiting[: 1 + seed % 4]:
            if flush is None or await flush is None:
                acknowledged.append(offset)

    loop.run_until_complete(main())
    loop.close()
    files.power_loss()
    assert make_partition(files).log.log_end > max(acknowledged)


def test_flush_messages_of_ten_flushes_at_the_tenth_record() -> None:
    loop, files = SimulatedLoop(Random(1)), make_files()
    partition = make_partition(files, loop, flush_messages=10)
    syncs = count_syncs(files)

    async def main() -> None:
        for _ in range(9):
            assert partition.flushed(append(partition).last_offset) is None
        assert partition.high_watermark == 9
        tenth = partition.flushed(append(partition).last_offset)
        eleventh = partition.flushed(append(partition).last_offset)
        # It need not be on disk, but it may not become visible before the tenth.
        assert tenth is not None and eleventh is tenth and partition.high_watermark == 9
        assert await tenth is None
        assert (partition.log.recovery_point, partition.high_watermark, len(syncs)) == (10, 11, 1)

    loop.run_until_complete(main())
    loop.close()


def test_a_duplicate_batch_waits_for_the_flush_of_the_original() -> None:
    loop = SimulatedLoop(Random(1))
    partition = make_partition(make_files(), loop, flush_messages=1)

    async def main() -> None:
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        first, again = append(partition, **producer), append(partition, **producer)
        assert again.duplicate and again.last_offset == first.last_offset
        flush = partition.flushed(again.last_offset)
        assert flush is not None and flush is partition.flushed(first.last_offset)
        assert await flush is None

    loop.run_until_complete(main())
    loop.close()


def test_a_failed_fsync_takes_the_partition_offline_and_fails_all_waiters() -> None:
    loop, files = SimulatedLoop(Random(1)), make_files()
    partition = make_partition(files, loop, flush_messages=1)

    async def main() -> None:
        fail_operation(files, "sync", errno.EIO)
        waiting = [partition.flushed(append(partition).last_offset) for _ in range(3)]
        results = [await flush for flush in waiting if flush is not None]
        assert [error and error.code for error in results] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
        assert partition.offline == "t-0 is offline: refused"
        assert (partition.high_watermark, partition.log.recovery_point) == (0, 0)

    loop.run_until_complete(main())
    loop.close()


def test_a_full_disk_for_the_epoch_checkpoint_does_not_take_the_partition_offline() -> None:
    """Fail the epoch checkpoint, written with an epoch's first sync: on a full disk it has to wait, as do producers."""
    loop, files = SimulatedLoop(Random(1)), make_files()
    partition = make_partition(files, loop, flush_messages=1)

    async def main() -> None:
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        fail_operation(files, "append", errno.ENOSPC, ".tmp")
        flush = partition.flushed(append(partition, **producer).last_offset)
        error = await flush if flush is not None else None
        assert error is not None and error.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert partition.offline is None and (partition.is_held, partition.high_watermark) == (True, 0)
        files.fault = None
        flush = partition.flushed(append(partition, **producer).last_offset)  # a producer's retry
        assert flush is not None and await flush is None
        assert (partition.high_watermark, partition.log.recovery_point, partition.log.log_end) == (1, 1, 1)

    loop.run_until_complete(main())
    loop.close()


def test_waiters_of_a_deleted_log_get_its_closing_error() -> None:
    loop, files = SimulatedLoop(Random(1)), make_files()
    partition = make_partition(files, loop, flush_messages=1)

    async def main() -> None:
        flush = partition.flushed(append(partition).last_offset)
        assert partition.commit is not None and flush is not None
        partition.commit.closed = partition.fail(OSError("the topic was deleted"))
        partition.log.abandon()
        fail_operation(files, "sync_dir", errno.ENOENT)
        assert await flush is partition.commit.closed
        assert await partition.commit.sync() is partition.commit.closed

    loop.run_until_complete(main())
    loop.close()


def test_a_cancelled_waiter_does_not_affect_other_waiters() -> None:
    loop = SimulatedLoop(Random(1))
    partition = make_partition(make_files(), loop, flush_messages=1)

    async def main() -> None:
        flush = partition.flushed(append(partition).last_offset)
        assert flush is not None and partition.commit is not None
        flush.cancel()
        assert await partition.commit.sync() is None
        assert partition.high_watermark == 1

    loop.run_until_complete(main())
    loop.close()
    assert loop.unhandled() == [] and partition.log.flush_due(NOW_MS) is False
