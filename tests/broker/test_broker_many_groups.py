"""Ten thousand groups on one coordinator: commit, list, describe, reload after a restart, and fair scheduling of loads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from testkit.simulator.loop import SimulatedLoop
from tests.fakes import FakeClock
from tests.replication.replication_samples import NODE, NOW_MS, TOPIC_ID, elect, make_files, make_partition

from headrace.base.errors import ErrorCode
from headrace.broker.shard_runner import LOAD_SLICE_S, Coordination, CoordinatorTopic
from headrace.client.wire.connection import Connection
from headrace.coordinators.group.groups import list_groups
from headrace.coordinators.group.handler_table import GROUP_HANDLERS
from headrace.coordinators.group.offsets import VALUE_VERSION
from headrace.coordinators.group.records import GroupRecord, decode_group_record, encode_group_record
from headrace.coordinators.group.settings import GroupSettings
from headrace.coordinators.group.shard import GroupShard
from headrace.metadata.image import Image, Topic
from headrace.metadata.image import Partition as PartitionState
from headrace.protocol.apis import APIS
from headrace.protocol.messages.list_groups import ListGroupsResponse
from headrace.protocol.messages.stored.offsets import OffsetCommitKey, OffsetCommitValue
from headrace.records.batch import read_header
from headrace.records.builder import build_batch
from headrace.records.record import Record
from headrace.replication.journal import RECORDS_AT_ONCE
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

GROUPS = [f"group-{number}" for number in range(10_000)]
CHUNK_SIZE = 500  # requests in flight, or groups per request
ATTEMPTS_MAX = 5000
COMMIT, FETCH, DESCRIBE, LIST, CREATE, FIND = 8, 9, 15, 16, 19, 10


def of(key: int, /, **fields: Any) -> Any:
    return APIS[key].request(**fields)


def part(key: int, kind: str, /, **fields: Any) -> Any:
    return getattr(APIS[key].request, kind)(**fields)


def chunks(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[start : start + CHUNK_SIZE] for start in range(0, len(items), CHUNK_SIZE)]


async def listed(connection: Connection) -> list[ListGroupsResponse.ListedGroup]:
    """Return all groups once loading has finished."""
    for _ in range(ATTEMPTS_MAX):
        response = await connection.request(of(LIST))
        if response.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            assert response.error_code == ErrorCode.NONE
            return response.groups
    raise AssertionError("it takes too long")


async def commit_all(node: EmbeddedNode) -> None:
    connection = await Connection.connect(LOOPBACK, node.port)
    topic = part(CREATE, "CreatableTopic", name="read", num_partitions=1, replication_factor=1)
    await connection.request(of(CREATE, timeout_ms=9000, topics=[topic]))
    for _ in range(ATTEMPTS_MAX):
        found = await connection.request(of(FIND, coordinator_keys=GROUPS[:1]))
        if not found.coordinators[0].error_code:
            break
    await listed(connection)

    async def commit(number: int) -> int:
        partition = part(COMMIT, "OffsetCommitRequestPartition", partition_index=0, committed_offset=number)
        topics = [part(COMMIT, "OffsetCommitRequestTopic", name="read", partitions=[partition])]
        response = await connection.request(of(COMMIT, group_id=GROUPS[number], topics=topics), version=9)
        return response.topics[0].partitions[0].error_code

    for numbers in chunks(range(len(GROUPS))):
        assert set(await asyncio.gather(*map(commit, numbers))) == {ErrorCode.NONE}
    assert len(await listed(connection)) == len(GROUPS)
    await connection.close()


async def check_all(node: EmbeddedNode) -> None:
    connection = await Connection.connect(LOOPBACK, node.port)
    assert sorted(one.group_id for one in await listed(connection)) == sorted(GROUPS)
    few = [GROUPS[0], GROUPS[5000], GROUPS[-1], "nobody"]
    described = (await connection.request(of(DESCRIBE, groups=few), version=5)).groups
    assert [one.group_state for one in described] == ["Empty", "Empty", "Empty", "Dead"]
    found: dict[str, int] = {}
    for groups in chunks(GROUPS):
        topics = [part(FETCH, "OffsetFetchRequestTopics", name="read", partition_indexes=[0])]
        wanted = [part(FETCH, "OffsetFetchRequestGroup", group_id=group, topics=topics) for group in groups]
        for group in (await connection.request(of(FETCH, groups=wanted), version=9)).groups:
            found[group.group_id] = group.topics[0].partitions[0].committed_offset
    assert found == {group: number for number, group in enumerate(GROUPS)}
    await connection.close()


def test_ten_thousand_groups_are_loaded_after_a_restart() -> None:
    with EmbeddedNode({"offsets.topic.num.partitions": "3"}) as node:
        asyncio.run(commit_all(node))
        node.restart()
        asyncio.run(check_all(node))


@pytest.mark.parametrize("per_batch", [10, len(GROUPS)])
def test_loading_groups_yields_to_other_tasks(per_batch: int) -> None:
    """Load batches of any size, with a clock so slow that a slice is over at the next reading."""
    loop = SimulatedLoop(Random(1), steps_max=1_000_000)
    loop.look_s = 1.1 * LOAD_SLICE_S
    partition = make_partition(make_files())
    state = PartitionState(replicas=(NODE,), isr=(NODE,), leader=NODE, leader_epoch=0, partition_epoch=0)
    image = Image(topics={"t": Topic("t", TOPIC_ID, (state,))})
    machines: list[GroupShard] = []

    def make() -> GroupShard:
        machines.append(GroupShard(GROUP_HANDLERS, GroupSettings(), lambda: image, Random(1)))
        return machines[-1]

    records = [
        Record(0, NOW_MS, *encode_group_record(GroupRecord(OffsetCommitKey(group, "read", 0), value, VALUE_VERSION)))
        for number, group in enumerate(GROUPS)
        for value in [OffsetCommitValue(offset=number, commit_timestamp=NOW_MS)]
    ]
    for start in range(0, len(records), per_batch):
        batch = build_batch(records[start : start + per_batch])
        partition.append(memoryview(batch), read_header(batch), NOW_MS, NOW_MS)
    topic = CoordinatorTopic("t", make, encode_group_record, decode_group_record)
    coordination = Coordination(topic, lambda: image, FakeClock(NOW_MS), loop)

    async def watch(seen: list[Any]) -> None:
        while True:
            seen.append(len(machines[-1].offsets.groups))
            await asyncio.sleep(0)

    async def main() -> None:
        for epoch in (0, 1):  # the second time after an unload
            elect(partition, NODE, epoch, (NODE,))
            coordination.elected(partition)
            seen: list[int] = []
            other = loop.create_task(watch(seen))
            await coordination.settle()
            other.cancel()
            assert max(after - before for before, after in pairwise(seen)) <= RECORDS_AT_ONCE
            assert len(set(seen)) >= len(GROUPS) // RECORDS_AT_ONCE
            assert len(list_groups(machines[epoch], [], [])) == len(GROUPS)
            for number in (0, 5000, len(GROUPS) - 1):
                assert machines[epoch].offsets.get(GROUPS[number], ("read", 0)).offset == number
        coordination.close()

    loop.run_until_complete(main())
    loop.close()
    assert loop.errors == []
