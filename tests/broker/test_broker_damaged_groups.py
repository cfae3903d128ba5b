"""An unreadable record in __consumer_offsets: its partition is logged and closed, all other groups are served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.admin.groups import commit_offsets, committed_offsets, describe_group, list_groups
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.coordinator_lookup import find_coordinator
from headrace.coordinators.partitioning import coordinator_partition
from headrace.records.batch import read_header
from headrace.records.builder import build_batch
from headrace.records.record import Record
from headrace.storage.disk import DiskFiles
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

PARTITIONS = 2
SETTINGS = {"offsets.topic.num.partitions": str(PARTITIONS), "num.partitions": "1"}
READ = TopicPartition("read", 0)
GROUPS = [f"group-{number}" for number in range(6)]
CORRUPT_PARTITION = coordinator_partition(GROUPS[0], PARTITIONS)
UNAVAILABLE_GROUPS = [group for group in GROUPS if coordinator_partition(group, PARTITIONS) == CORRUPT_PARTITION]
SERVED_GROUPS = [group for group in GROUPS if group not in UNAVAILABLE_GROUPS]
ATTEMPTS_MAX = 500
COMMITTED_KEY, GROUP_KEY = b"\x00\x01", b"\x00\x02"


def append(directory: Path, key: bytes | None, value: bytes) -> int:
    """Append a record that no coordinator ever writes and return its offset."""
    name = TopicPartition("__consumer_offsets", CORRUPT_PARTITION)
    log, _ = Log.open(DiskFiles(), str(directory / str(name)), name, LogConfig(), clean=True, now_ms=0)
    batch = build_batch([Record(0, 0, key, value)])
    offset = log.append_as_leader(batch, read_header(batch), log.epochs.latest, 0).first_offset
    log.close()
    return offset


async def loaded(cluster: Cluster) -> list[str]:
    """Return all groups once loading has finished."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return [one.group for one in await list_groups(cluster, [], [])]
        except KafkaError as error:
            assert error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    raise AssertionError("it takes too long")


async def refusal(work: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await work
    return caught.value.code


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (COMMITTED_KEY + b"\x00\x07group-0", b"\x00\x04"),  # truncated
        (GROUP_KEY + b"\x00\x07group-0", b"\x7f\xff\x00"),  # an unknown version of the value
        (None, b"without a key"),
    ],
)
def test_an_unreadable_record_closes_only_its_own_offsets_partition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: bytes | None, value: bytes
) -> None:
    async def commit_all() -> None:
        async with Cluster([(LOOPBACK, node.port)]) as cluster:
            await cluster.partitions(READ.topic, create=True)
            await find_coordinator(cluster, GROUPS[0])
            await loaded(cluster)
            for group in GROUPS:
                assert await commit_offsets(cluster, group, {READ: 1}) == {READ: ErrorCode.NONE}

    async def check() -> None:
        async with Cluster([(LOOPBACK, node.port)]) as cluster:
            assert await loaded(cluster) == SERVED_GROUPS
            for group in SERVED_GROUPS:
                assert (await committed_offsets(cluster, group))[READ].offset == 1
                assert await commit_offsets(cluster, group, {READ: 2}) == {READ: ErrorCode.NONE}
                assert (await describe_group(cluster, group)).state == "Empty"
            for group in UNAVAILABLE_GROUPS:
                assert await refusal(committed_offsets(cluster, group)) is ErrorCode.NOT_COORDINATOR
                assert await commit_offsets(cluster, group, {READ: 2}) == {READ: ErrorCode.COORDINATOR_NOT_AVAILABLE}

    with EmbeddedNode(SETTINGS, data_dir=tmp_path) as node:
        asyncio.run(commit_all())
    offset = append(tmp_path, key, value)
    with EmbeddedNode(SETTINGS, data_dir=tmp_path) as node:
        asyncio.run(check())
    [log_record] = [record for record in caplog.records if "cannot be loaded" in record.getMessage()]
    assert log_record.levelname == "ERROR"
    assert log_record.getMessage().startswith(
        f"__consumer_offsets-{CORRUPT_PARTITION} cannot be loaded: in the batch at offset {offset}: a record of __consumer_offsets "
    )
