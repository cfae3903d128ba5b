"""Compaction on a node with simulated disks, in virtual time: moves, deletions, retention and the order of renames."""

from __future__ import annotations

import asyncio
import logging
from itertools import groupby

import pytest
from testkit.simulator.machine import DATA, SECOND_DATA
from tests.node.node_world import T0, NodeHarness

from headrace.base.errors import ErrorCode
from headrace.client.consumer.list_offsets import EARLIEST, LATEST
from headrace.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

KEYS = 5
SEGMENT_BYTES = 2000
OPTIONS = {"log.cleaner.backoff.ms": "500", "log.retention.check.interval.ms": "5000"}
TOPIC = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.0",
    "internal_segment_bytes": str(SEGMENT_BYTES),
    "file_delete_delay_ms": "2000",
}
SLOW = {**OPTIONS, "log.cleaner.io.max.bytes.per.second": "2000.0"}  # makes a run take many seconds
MARKS = (".cleaned", ".swap", ".deleted")
DIRECTORY = f"{DATA}/t-0"


async def write(harness: NodeHarness, count: int, first: int = 0, keys: int = KEYS, prefix: bytes = b"key") -> None:
    """Write each record as a separate batch, with its number as the value."""
    for number in range(first, first + count):
        record = b"%b-%d" % (prefix, number % keys), b"%d" % number * 20
        assert await harness.send_records(T0, [record]) == number


async def read(harness: NodeHarness) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Return all remaining records by offset."""
    found: dict[int, tuple[bytes, bytes]] = {}
    offset, end = await harness.offset(T0, EARLIEST), await harness.offset(T0, LATEST)
    while offset < end:
        fetched = await harness.fetch(T0, offset)
        found |= {record.offset: (record.key, record.value) for record in fetched.records if record.offset >= offset}
        offset = fetched.next_offset
    return found


def newest_of_each_key(found: dict[int, tuple[bytes | None, bytes | None]]) -> dict[bytes | None, bytes | None]:
    return {key: value for _, (key, value) in sorted(found.items())}


def expected(count: int) -> dict[bytes | None, bytes | None]:
    return {b"key-%d" % (number % KEYS): b"%d" % number * 20 for number in range(count)}


async def until_under_way(harness: NodeHarness) -> None:
    """Wait until a run has written something."""
    log = harness.node.broker.replicas.get(*T0).log
    await harness.until(
        lambda: log.is_being_cleaned and any(n.endswith(".cleaned") for n in harness.names(log.directory))
    )


async def until_clean(harness: NodeHarness) -> None:
    def is_clean() -> bool:
        log = harness.node.broker.replicas.get(*T0).log
        return not log.is_being_cleaned and log.cleaned_to == log.segments.active.base_offset > 0

    await harness.until(is_clean, 600.0)


def marked(harness: NodeHarness) -> list[str]:
    """Return all files and directories that a run or a move may leave behind."""
    found = [path for path, _ in harness.files.walk() if path.endswith(MARKS)]
    return found + [
        name
        for log_dir in (DATA, SECOND_DATA)
        for name in harness.names(log_dir)
        if name.endswith(("-future", "-delete"))
    ]


async def move(harness: NodeHarness, path: str) -> None:
    topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name="t", partitions=[0])
    request = AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path, topics=[topic])]
    )
    response: AlterReplicaLogDirsResponse = await harness.cluster.request(request)
    assert response.results[0].partitions[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize("seed", range(4))
def test_a_compaction_run_is_aborted_when_its_partition_moves_to_another_directory(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    harness = NodeHarness(SLOW, two_dirs=True, seed=seed)

    async def main() -> None:
        await harness.create(1, **TOPIC)
        await write(harness, 100)
        await until_under_way(harness)
        there = SECOND_DATA if harness.log_dir(T0) == DATA else DATA
        with caplog.at_level(logging.INFO):
            await move(harness, there)
            await harness.until(lambda: harness.log_dir(T0) == there)
            await harness.until(lambda: "the compaction of t-0 was abandoned" in caplog.text)
        assert newest_of_each_key(await read(harness)) == expected(100)
        await harness.until(lambda: not harness.files.exists(f"{DATA if there == SECOND_DATA else SECOND_DATA}/t-0"))
        await until_clean(harness)  # the run starts over in the new directory
        found = await read(harness)
        assert newest_of_each_key(found) == expected(100) and len(found) < 100
        await harness.until(lambda: not marked(harness))
        await harness.machine.stop()
        await harness.machine.until_up()
        await harness.cluster.close()
        assert harness.log_dir(T0) == there and await read(harness) == found
        assert "cannot be compacted" not in caplog.text

    harness.run(main)


@pytest.mark.parametrize("seed", range(4))
def test_a_compaction_run_is_aborted_when_its_topic_is_deleted(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    harness = NodeHarness(SLOW, seed=seed)

    async def main() -> None:
        await harness.create(1, **TOPIC)
        await write(harness, 100)
        await until_under_way(harness)
        with caplog.at_level(logging.INFO):
            state = DeleteTopicsRequest.DeleteTopicState(name="t")
            response: DeleteTopicsResponse = await harness.cluster.request(DeleteTopicsRequest(topics=[state]))
            assert response.responses[0].error_code == ErrorCode.NONE
            await harness.until(lambda: "the compaction of t-0 was abandoned" in caplog.text)
        await harness.create(1, **TOPIC)  # the new topic of that name inherits nothing
        await harness.cluster.refresh(["t"])
        await write(harness, 60)
        await until_clean(harness)
        found = await read(harness)
        assert newest_of_each_key(found) == expected(60) and len(found) < 60
        await harness.until(lambda: not marked(harness))
        assert "cannot be compacted" not in caplog.text and harness.node.broker.replicas.offline() == []

    harness.run(main)


def test_compact_and_delete_deletes_old_segments_and_compacts_the_rest() -> None:
    harness = NodeHarness(OPTIONS)

    async def main() -> None:
        await harness.create(1, **{**TOPIC, "cleanup_policy": "compact,delete"}, retention_ms="60000")
        await write(harness, 50, keys=30, prefix=b"old")
        await until_clean(harness)
        assert {0, 5}.isdisjoint(await read(harness)) and await harness.offset(T0, EARLIEST) == 0
        await asyncio.sleep(40)
        await write(harness, 50, first=50)
        await until_clean(harness)
        assert b"old-7" in newest_of_each_key(await read(harness))  # nothing is too old yet
        # Now the first half is, including the segment that compaction left without any record to date it.
        await asyncio.sleep(40)
        start, left = await harness.offset(T0, EARLIEST), await read(harness)
        assert 30 < start < 70 and min(left) >= start and newest_of_each_key(left) == expected(100)
        active = harness.node.broker.replicas.get(*T0).log.segments.active.base_offset
        sealed = [key for offset, (key, _) in left.items() if offset < active]
        assert len(sealed) == len(set(sealed)) > 0
        await asyncio.sleep(60)
        assert await read(harness) == {} and await harness.offset(T0, EARLIEST) == 100
        await harness.until(lambda: not marked(harness))
        assert [name for name in harness.names(DIRECTORY) if name.endswith(".log")] == [f"{100:020d}.log"]
        await write(harness, 1, first=100)

    harness.run(main)


def test_a_segment_swap_syncs_the_directory_between_renames() -> None:
    """Check that the node follows the order of steps in `storage.swap` for every segment it replaces."""
    harness = NodeHarness(OPTIONS)
    seen: list[str] = []

    def watch(operation: str, path: str) -> None:
        if path.startswith(DIRECTORY):
            if operation == "sync_dir" and path == DIRECTORY:
                seen.append("sync")
            elif operation == "rename" and path.partition(" ")[0].endswith((".log", ".log.cleaned", ".log.swap")):
                target = path.partition(" ")[2]
                seen.append(next((mark for mark in (".swap", ".deleted") if target.endswith(mark)), "unmarked"))

    async def main() -> None:
        await harness.create(1, **TOPIC)
        await write(harness, 100)
        harness.files.fault = watch
        await until_clean(harness)
        await asyncio.sleep(1)
        harness.files.fault = None

    harness.run(main)
    swaps = " ".join(seen).split(".swap ")[1:]
    assert len(swaps) > 3
    for swap in swaps:
        steps = [step for step, _ in groupby(swap.split())]
        assert steps[:4] == ["sync", ".deleted", "sync", "unmarked"], seen
