"""Failures that other systems had in clusters, provoked in the same way; docs/promises.md lists them with their tests."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.cluster.simulated_cluster import PRODUCER, T0, SimulatedCluster, simulate

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.client.consumer.range_reader import read_once
from headrace.client.group.membership import CommittedOffset, GroupMetadata
from headrace.client.producer.producer import AsyncProducer
from headrace.client.retry import UNREACHABLE
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.delete_records import DeleteRecordsRequest
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.batch import read_header
from headrace.records.builder import build_batch
from headrace.records.record import Record

T1 = TopicPartition("t", 1)
TRANSACTIONS = TopicPartition("__transaction_state", 0)
READ_COMMITTED = 1


def produce_request(cluster: SimulatedCluster, *values: bytes) -> ProduceRequest:
    """Return a request with one batch and acks=all."""
    batch = build_batch([Record(0, 1_700_000_000_000, None, value) for value in values])
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))
    topic = ProduceRequest.TopicProduceData(topic_id=cluster.image().topics["t"].id, partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])


async def fetch(cluster: SimulatedCluster, node_id: int, offset: int) -> FetchResponse.PartitionData:
    partition = FetchRequest.FetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchRequest.FetchTopic(topic_id=cluster.image().topics["t"].id, partitions=[partition])
    connection = await cluster.client.broker(node_id)
    return (await connection.request(FetchRequest(max_wait_ms=0, topics=[topic]))).responses[0].partitions[0]


def test_a_leader_that_is_isolated_and_then_killed_has_acknowledged_nothing_alone() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(5)
        old = cluster.leader()
        for other in cluster.machines:
            if other != old:
                cluster.network.block(f"node-{old}", f"node-{other}")
                cluster.network.block(f"node-{other}", f"node-{old}")
        connection = await Connection.connect(f"node-{old}", 9092)  # clients still reach it
        codes = set()
        for _ in range(12):
            response = await connection.request(produce_request(cluster, b"alone"))
            codes.add(ErrorCode(response.responses[0].partition_responses[0].error_code))
        assert ErrorCode.NONE not in codes, codes
        await connection.close()
        await cluster.until(lambda: cluster.leader() not in (old, -1))
        await cluster.send(5)
        cluster.down(cluster.machines[old])
        cluster.network.unblock()
        await cluster.send(5)
        cluster.start(old)
        await cluster.until_in_sync()
        values = [record.value for record in await cluster.read(T0, 0)]
        assert b"alone" not in values and len(values) == 15

    simulate(main)


def test_deleted_records_stay_deleted_on_the_next_leader_and_their_offsets_are_out_of_range() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(10)
        old = cluster.leader()
        requested = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=6)
        topics = [DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[requested])]
        connection = await cluster.client.leader(T0)
        response = await connection.request(DeleteRecordsRequest(topics=topics, timeout_ms=5000))
        assert response.topics[0].partitions[0].low_watermark == 6
        cluster.acknowledged[T0] = cluster.acknowledged[T0][6:]
        for node_id in cluster.machines:
            assert (await fetch(cluster, node_id, 5)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        cluster.down(cluster.machines[old])
        await cluster.send(1)
        data = await fetch(cluster, cluster.leader(), 5)
        assert (data.error_code, cluster.replica(cluster.leader()).log.log_start) == (ErrorCode.OFFSET_OUT_OF_RANGE, 6)
        cluster.start(old)
        await cluster.until_in_sync()
        assert [record.offset for record in await cluster.read(T0, 6)] == [6, 7, 8, 9, 10]

    simulate(main, seed=2)


def test_a_fetch_in_the_middle_of_a_batch_returns_that_batch_from_every_replica() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        connection = await cluster.client.leader(T0)
        response = await connection.request(produce_request(cluster, b"a", b"b", b"c", b"d", b"e"))
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        await cluster.until_in_sync()
        for node_id in cluster.machines:
            data = await fetch(cluster, node_id, 3)
            assert isinstance(data.records, bytes | memoryview)
            header = read_header(data.records)
            assert (header.base_offset, header.last_offset) == (0, 4)
        assert [record.value for record in await cluster.read(T0, 3)] == [b"d", b"e"]

    simulate(main, seed=3)


# --- transactions


async def committed_offset(cluster: SimulatedCluster, group: str) -> int:
    """Return the offset that the group has committed for t-0, once no transaction may still change it."""
    topic_id = cluster.image().topics["t"].id
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0])
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[topic])
    request = OffsetFetchRequest(groups=[wanted], require_stable=True)
    deadline = cluster.loop.now + 60
    while True:
        leader = cluster.leader(TopicPartition("__consumer_offsets", 0))
        try:
            found = (await (await cluster.client.broker(leader)).request(request)).groups[0]
            if not found.error_code and not found.topics[0].partitions[0].error_code:
                return found.topics[0].partitions[0].committed_offset
        except UNREACHABLE:
            pass
        assert cluster.loop.now < deadline, "the offset of the group stays unknown"
        await asyncio.sleep(0.1)


async def visible(cluster: SimulatedCluster) -> list[bytes]:
    """Return the values that a read_committed consumer reads from both partitions, once no transaction is open."""
    for name in (T0, T1):
        await cluster.until(lambda name=name: is_stable(cluster, name))  # type: ignore[misc]
    found: list[bytes] = []
    for name in (T0, T1):
        position, end = 0, cluster.replica(cluster.leader(name), name).high_watermark
        while position < end:
            read = await read_once(cluster.client, name, position, wait_ms=0, isolation=READ_COMMITTED)
            found += [record.value for record in read.records]
            position = read.next_offset
    return found


def is_stable(cluster: SimulatedCluster, name: TopicPartition) -> bool:
    leader = cluster.replica(cluster.leader(name), name) if cluster.leader(name) > 0 else None
    return leader is not None and leader.is_leader and leader.last_stable_offset == leader.log.log_end


def victim(cluster: SimulatedCluster, kind: str) -> int:
    return {
        "coordinator": lambda: cluster.leader(TRANSACTIONS),
        "leader": lambda: cluster.leader(T0),
        "controller": cluster.active_controller,
    }[kind]()


@pytest.mark.parametrize("kind", ["coordinator", "leader", "controller"])
def test_a_transaction_is_visible_completely_or_not_at_all_when_nodes_die_around_it(kind: str) -> None:
    """The records and the offset of the input are committed together, and what was answered stays true."""

    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create(partitions=2)
        options = {**PRODUCER, "transactional.id": "copy", "max.block.ms": 100_000}
        producer = AsyncProducer(options, cluster=cluster.client, clock=cluster.machines[1].files, random=Random(9))
        await producer.start()
        await producer.transaction.init()
        expected: list[bytes] = []
        for number in range(6):
            dead = None
            await producer.transaction.begin()
            values = [b"%d-%d" % (number, part) for part in range(4)]
            deliveries = [await producer.send("t", value, partition=part % 2) for part, value in enumerate(values[:2])]
            for delivery in deliveries:
                await delivery
            if number % 2 == 0:
                dead = victim(cluster, kind)
                cluster.down(cluster.machines[dead])
            for part, value in enumerate(values[2:]):
                await (await producer.send("t", value, partition=part % 2))
            await producer.transaction.send_offsets({T0: CommittedOffset(number + 1)}, GroupMetadata("copies"))
            if number in (2, 3):
                await producer.transaction.abort()
            elif number == 4:  # the node returns while the transaction ends
                ending = asyncio.ensure_future(producer.transaction.commit())
                await asyncio.sleep(0.001)
                cluster.start(dead)
                dead = None
                await ending
                expected += values
            else:
                await producer.transaction.commit()
                expected += values
            if dead is not None:
                cluster.start(dead)
            await cluster.until_up()
            await cluster.until_in_sync()
            await cluster.until_in_sync(T1)
            await cluster.until_in_sync(TRANSACTIONS)
        await producer.close(0)
        assert sorted(await visible(cluster)) == sorted(expected)
        assert await committed_offset(cluster, "copies") == 6
        assert cluster.failures == {}

    simulate(main, seed=20 + len(kind))


def test_an_open_transaction_stays_open_on_the_next_leader_until_it_is_aborted() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create(partitions=2)
        options = {**PRODUCER, "transactional.id": "zombie", "transaction.timeout.ms": 20_000, "max.block.ms": 100_000}
        producer = AsyncProducer(options, cluster=cluster.client, clock=cluster.machines[1].files, random=Random(9))
        await producer.start()
        await producer.transaction.init()
        await producer.transaction.begin()
        await (await producer.send("t", b"open", partition=0))
        old = cluster.leader()
        cluster.down(cluster.machines[old])
        await cluster.send(2)  # after the open transaction, by another producer
        leader = cluster.replica(cluster.leader())
        assert leader.last_stable_offset == 0 < leader.high_watermark
        cluster.start(old)
        values = await visible(cluster)  # the coordinator aborts the transaction after its timeout
        assert values == [value for _, value in cluster.acknowledged[T0]]
        await producer.close(0)

    simulate(main, seed=30)
