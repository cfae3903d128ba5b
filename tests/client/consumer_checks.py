"""What a consumer must do on any cluster, ours or Kafka's; each check creates its own topics at `bootstrap`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.consumer import AsyncConsumer
from headrace.client.consumer.decoding import ConsumerRecord
from headrace.client.consumer.fetching import READ_COMMITTED
from headrace.client.consumer.list_offsets import EARLIEST, LATEST, list_offsets
from headrace.client.consumer.position_lookup import NoOffset
from headrace.client.consumer.positions import NotAssigned
from headrace.client.consumer.range_reader import OffsetGone, RangeOptions, TopicChanged, read_range
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.delete_records import DeleteRecordsRequest

WAIT_S_MAX = 20.0
T0 = 1_700_000_000_000


# --- topics and records, made with another client


def make_topic(bootstrap: str, partitions: int = 1, **configs: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    create_topic(bootstrap, name, partitions, **configs)
    return name


def create_topic(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in configs.items()})
    admin.create_topics([wanted])[name].result(WAIT_S_MAX)


def delete_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(WAIT_S_MAX)


def write(bootstrap: str, topic: str, values: Sequence[Any], partition: int = 0, **options: Any) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **options})
    for index, value in enumerate(values):
        producer.produce(topic, value, b"k%d" % index, partition, timestamp=T0 + index, headers=[("h", b"%d" % index)])
    assert producer.flush(WAIT_S_MAX) == 0


def write_transaction(bootstrap: str, topic: str, values: Sequence[bytes], *, commit: bool) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(WAIT_S_MAX)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT_S_MAX) == 0
    (producer.commit_transaction if commit else producer.abort_transaction)(WAIT_S_MAX)


@asynccontextmanager
async def consumer(bootstrap: str, **options: Any) -> AsyncIterator[AsyncConsumer]:
    given = {"auto.offset.reset": "earliest", **{name.replace("_", "."): value for name, value in options.items()}}
    async with AsyncConsumer({"bootstrap.servers": bootstrap, **given}) as made:
        yield made


@asynccontextmanager
async def cluster(bootstrap: str) -> AsyncIterator[Cluster]:
    host, port = bootstrap.split(":")
    async with Cluster([(host, int(port))], timeout_s=WAIT_S_MAX) as made:
        yield made


async def poll_values(reader: AsyncConsumer, count: int) -> list[bytes | None]:
    return [record.value for record in await poll_until(reader, count)]


async def poll_until(reader: AsyncConsumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + WAIT_S_MAX
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        found += await reader.poll(0.5)
    return found


# --- checks


async def reads_plain_and_compressed_records(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 2)
    for partition, codec in enumerate(("none", "zstd")):
        write(bootstrap, topic, [b"a", None, b"c" * 5000], partition, **{"compression.type": codec})
    async with consumer(bootstrap) as reader:
        reader.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        found = await poll_until(reader, 6)
        for partition in (0, 1):
            mine = [record for record in found if record.partition == partition]
            assert mine == [
                ConsumerRecord(topic, partition, index, T0 + index, 0, b"k%d" % index, value, (("h", b"%d" % index),))
                for index, value in enumerate([b"a", None, b"c" * 5000])
            ]
            assert await reader.position(TopicPartition(topic, partition)) == 3
            assert reader.lag(TopicPartition(topic, partition)) == 0
        assert await reader.poll(0.05) == []


async def reads_arrow(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    write(bootstrap, topic, [b"%d" % index for index in range(1000)], **{"batch.size": 2000})
    async with consumer(bootstrap) as reader:
        reader.assign([TopicPartition(topic, 0)])
        found: list[pa.RecordBatch] = []
        while sum(rows.num_rows for rows in found) < 1000:
            for partition, rows in await reader.poll_batch(5.0, 300, columns=("value", "partition", "offset")):
                assert partition == TopicPartition(topic, 0) and rows.num_rows <= 300
                rows.validate(full=True)
                found.append(rows)
        table = pa.Table.from_batches(found)
        assert table.column_names == ["value", "partition", "offset"]
        assert table["offset"].to_pylist() == list(range(1000))
        assert table["value"].to_pylist() == [b"%d" % index for index in range(1000)]
        metrics = reader.metrics()
        assert metrics["records-consumed-total"] == 1000 and metrics["fetch-total"] >= 1
        assert metrics["records-lag-max"] >= 0 and metrics[f"{topic}-0.records-lag"] == 0


async def returns_at_most_max_poll_records(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    write(bootstrap, topic, [b"%d" % index for index in range(25)])
    async with consumer(bootstrap, max_poll_records=10) as reader:
        reader.assign([TopicPartition(topic, 0)])
        sizes: list[int] = []
        while sum(sizes) < 25:
            sizes.append(len(await reader.poll(5.0)))
        assert max(sizes) <= 10
        reader.seek(TopicPartition(topic, 0), 3)
        assert [record.offset for record in await reader.poll(5.0, 4)] == [3, 4, 5, 6]
        rows = await reader.poll_batch(5.0, 3)
        assert rows[0][1]["offset"].to_pylist() == [7, 8, 9]
        assert await poll_values(reader, 10) == [b"%d" % index for index in range(10, 20)]


async def seeks(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 2)
    write(bootstrap, topic, [b"%d" % index for index in range(10)])
    here, there = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with consumer(bootstrap) as reader:
        reader.assign([here])
        assert len(await poll_until(reader, 10)) == 10
        reader.seek(here, 7)
        assert await poll_values(reader, 3) == [b"7", b"8", b"9"]
        reader.seek_to_beginning()
        assert (await poll_values(reader, 10))[0] == b"0"
        reader.seek_to_time([here], T0 + 4)
        assert await reader.position(here) == 4
        reader.seek_to_time([here], T0 + 10**9)
        assert await reader.position(here) == 10
        reader.seek_to_end()
        assert await reader.poll(0.1) == [] and await reader.position(here) == 10
        write(bootstrap, topic, [b"new"])
        assert await poll_values(reader, 1) == [b"new"]
        with pytest.raises(NotAssigned, match=f"{there} is not assigned to this consumer"):
            reader.seek(there, 0)
        with pytest.raises(ValueError, match="offset -1 is below zero"):
            reader.seek(here, -1)
        reader.assign([here, there])
        assert await reader.position(here) == 11


async def pauses(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 2)
    here, there = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for partition in (0, 1):
        write(bootstrap, topic, [b"%d" % partition] * 20, partition)
    async with consumer(bootstrap, max_poll_records=5) as reader:
        reader.assign([here, there])
        first = await poll_until(reader, 1)
        paused = TopicPartition(topic, first[0].partition)
        other = there if paused == here else here
        reader.pause([paused])
        assert reader.paused() == {paused}
        rest = await poll_until(reader, 20)
        assert {record.partition for record in rest} == {other.partition}
        assert await reader.poll(0.1) == []
        reader.resume([paused])
        again = await poll_until(reader, 20 - len(first))
        assert [record.offset for record in first + again] == list(range(20))


async def finds_offsets(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 2)
    write(bootstrap, topic, [b"%d" % index for index in range(10)])
    here, there = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with consumer(bootstrap) as reader:
        assert await reader.beginning_offsets([here, there]) == {here: 0, there: 0}
        assert await reader.end_offsets([here, there]) == {here: 10, there: 0}
        found = await reader.offsets_for_times({here: T0 + 5, there: T0})
        assert found[there] is None and found[here] is not None
        assert (found[here].offset, found[here].timestamp) == (5, T0 + 5)
        assert (await reader.offsets_for_times({here: T0 + 10**9}))[here] is None
        assert await reader.partitions_for(topic) == [0, 1]
        for missing in (TopicPartition(topic, 2), TopicPartition(f"{topic}-not", 0)):
            with pytest.raises(KafkaError, match=str(missing)) as refused:
                await reader.end_offsets([here, missing])
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def starts_where_auto_offset_reset_says(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    here = TopicPartition(topic, 0)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    now_ms = int(time.time() * 1000)
    for age_s in (7200, 3000, 10):
        producer.produce(topic, b"%d" % age_s, timestamp=now_ms - age_s * 1000)
    assert producer.flush(WAIT_S_MAX) == 0
    for reset, expected in (("earliest", 0), ("latest", 3), ("by_duration:PT1H", 1), ("by_duration:PT1S", 3)):
        async with consumer(bootstrap, auto_offset_reset=reset) as reader:
            reader.assign([here])
            assert await reader.position(here) == expected, reset
    async with consumer(bootstrap, auto_offset_reset="none") as reader:
        reader.assign([here])
        with pytest.raises(NoOffset, match=f"{here}: nothing is committed, and auto.offset.reset is none"):
            await reader.poll(5.0)
        reader.seek(here, 1)
        assert await poll_values(reader, 2) == [b"3000", b"10"]


async def resets_an_out_of_range_offset(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    here = TopicPartition(topic, 0)
    write(bootstrap, topic, [b"%d" % index for index in range(10)])
    await delete_records(bootstrap, here, 6)
    async with consumer(bootstrap) as reader:
        reader.assign([here])
        reader.seek(here, 2)
        assert (await poll_values(reader, 4))[0] == b"6"
        reader.seek(here, 99)
        assert (await poll_values(reader, 4))[0] == b"6"
    async with consumer(bootstrap, auto_offset_reset="none") as reader:
        reader.assign([here])
        reader.seek(here, 2)
        with pytest.raises(KafkaError, match=f"{here}: offset 2 does not exist") as refused:
            await reader.poll(5.0)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def delete_records(bootstrap: str, partition: TopicPartition, offset: int) -> None:
    async with cluster(bootstrap) as there:
        one = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
        topic = DeleteRecordsRequest.DeleteRecordsTopic(name=partition.topic, partitions=[one])
        connection = await there.leader(partition)
        response = await connection.request(DeleteRecordsRequest(topics=[topic], timeout_ms=10_000))
        assert response.topics[0].partitions[0].error_code == 0


async def reads_committed(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    here = TopicPartition(topic, 0)
    write_transaction(bootstrap, topic, [b"no"] * 3, commit=False)
    write_transaction(bootstrap, topic, [b"yes", b"yes"], commit=True)
    write(bootstrap, topic, [b"plain"])
    write_transaction(bootstrap, topic, [b"no"], commit=False)
    async with consumer(bootstrap, isolation_level="read_committed") as reader:
        reader.assign([here])
        assert await poll_values(reader, 3) == [b"yes", b"yes", b"plain"]
        deadline = time.monotonic() + WAIT_S_MAX
        while await reader.position(here) < 10:  # skip the aborted transaction and its marker
            assert await reader.poll(0.2) == [] and time.monotonic() < deadline
        assert await reader.end_offsets([here]) == {here: 10}
    async with consumer(bootstrap) as reader:
        reader.assign([here])
        assert (await poll_values(reader, 7)).count(b"no") == 4
    async with cluster(bootstrap) as there:
        options = RangeOptions(columns=("value",), isolation=READ_COMMITTED)
        rows = [one async for one in read_range(there, here, 0, 10, options)]
        assert [value for one in rows for value in one["value"].to_pylist()] == [b"yes", b"yes", b"plain"]


async def commits(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 2), uuid.uuid4().hex
    here, there = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(bootstrap, topic, [b"%d" % index for index in range(10)])
    async with consumer(bootstrap, group_id=group, enable_auto_commit=False) as reader:
        reader.assign([here])
        assert await reader.committed([here, there]) == {}
        assert len(await reader.poll(10.0, 4)) == 4
        await reader.commit()
        assert (await reader.committed([here, there]))[here].offset == 4
        assert len(await reader.poll(10.0, 2)) == 2
        await reader.commit_async()
        await reader.commit({there: 77})
        found = await reader.committed([here, there])
        assert (found[here].offset, found[there].offset) == (6, 77)
        assert reader.group_metadata().group_id == group
    async with consumer(bootstrap, group_id=group) as reader:  # commits automatically when it closes
        reader.assign([here])
        assert await poll_values(reader, 4) == [b"6", b"7", b"8", b"9"]
    async with consumer(bootstrap, group_id=group) as reader:
        assert (await reader.committed([here]))[here].offset == 10
    async with consumer(bootstrap) as reader:
        with pytest.raises(ConfigError, match=r"group\.id must be set"):
            await reader.commit()
        with pytest.raises(ConfigError, match=r"group\.id must be set"):
            reader.subscribe([topic])


async def commits_at_intervals(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap), uuid.uuid4().hex
    here = TopicPartition(topic, 0)
    write(bootstrap, topic, [b"%d" % index for index in range(10)])
    async with consumer(bootstrap, group_id=group, auto_commit_interval_ms=50) as reader:
        reader.assign([here])
        assert len(await poll_until(reader, 10)) == 10
        deadline = time.monotonic() + WAIT_S_MAX
        while (await reader.committed([here])).get(here, (0,))[0] < 10:
            assert time.monotonic() < deadline
            await reader.poll(0.05)


async def subscribes(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 2), uuid.uuid4().hex
    for partition in (0, 1):
        write(bootstrap, topic, [b"%d" % index for index in range(10)], partition)
    events: list[tuple[str, frozenset[TopicPartition]]] = []
    async with consumer(bootstrap, group_id=group) as reader:
        reader.subscribe(
            [topic],
            on_assigned=lambda partitions: events.append(("assigned", partitions)),
            on_revoked=lambda partitions: events.append(("revoked", partitions)),
        )
        assert len(await poll_until(reader, 20)) == 20
        assert reader.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        assert reader.group_metadata().member_id != ""
    non_empty_events = [one for one in events if one[1]]
    both = frozenset({TopicPartition(topic, 0), TopicPartition(topic, 1)})
    assert non_empty_events == [("assigned", both), ("revoked", both)]
    async with consumer(bootstrap, group_id=group) as reader:  # the first one committed everything when it left
        reader.subscribe([topic])
        deadline = time.monotonic() + WAIT_S_MAX
        while not reader.assignment():
            assert await reader.poll(0.2) == [] and time.monotonic() < deadline
        for assigned in reader.assignment():
            assert await reader.position(assigned) == 10


async def iterates(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap), uuid.uuid4().hex
    here = TopicPartition(topic, 0)
    write(bootstrap, topic, [b"%d" % index for index in range(10)])
    async with consumer(bootstrap, group_id=group, enable_auto_commit=False) as reader:
        reader.assign([here])
        async for record in reader:
            if record.offset == 6:
                break
        await reader.commit()
        assert (await reader.committed([here]))[here].offset == 7


async def reads_ranges(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    here = TopicPartition(topic, 0)
    values = [b"%06d" % index for index in range(5000)]
    write(bootstrap, topic, values, **{"batch.size": 4000})
    async with cluster(bootstrap) as there:
        for start, end, max_bytes, rows_max in ((0, 5000, 1 << 20, 65536), (17, 4321, 20_000, 100), (3, 4, 1, 1)):
            offsets: list[int] = []
            found: list[bytes] = []
            options = RangeOptions(columns=("offset", "value"), max_bytes=max_bytes, rows_max=rows_max)
            async for rows in read_range(there, here, start, end, options):
                assert 0 < rows.num_rows <= rows_max
                offsets += rows["offset"].to_pylist()
                found += rows["value"].to_pylist()
            assert offsets == list(range(start, end)) and found == values[start:end]
        assert [one async for one in read_range(there, here, 7, 7)] == []
        first = await anext(read_range(there, here, 0, 5000, RangeOptions(columns=("value",))))
        assert first.schema.names == ["value"]


async def reports_deleted_offsets_and_recreated_topics(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    here = TopicPartition(topic, 0)
    write(bootstrap, topic, [b"v"] * 10)
    await delete_records(bootstrap, here, 6)
    async with cluster(bootstrap) as there:
        with pytest.raises(OffsetGone, match=f"{here}: offset 2 does not exist; the partition holds 6 to 10") as gone:
            await anext(read_range(there, here, 2, 8))
        assert (gone.value.partition, gone.value.requested, gone.value.earliest, gone.value.latest) == (here, 2, 6, 10)
        with pytest.raises(OffsetGone, match="offset 10 does not exist; the partition holds 6 to 10"):
            assert [one.num_rows async for one in read_range(there, here, 6, 12, RangeOptions(stall_s_max=0.3))] == []
        await there.refresh([topic])
        before = there.topic_id(topic)
    delete_topic(bootstrap, topic)
    await recreate_topic(bootstrap, topic)
    write(bootstrap, topic, [b"other"] * 10)
    async with cluster(bootstrap) as there:
        with pytest.raises(TopicChanged, match=f"topic {topic} was recreated: its id was"):
            await anext(read_range(there, here, 0, 8, RangeOptions(topic_id=before)))
        listed = await list_offsets(there, {here: EARLIEST})
        assert listed[here].offset == 0 and (await list_offsets(there, {here: LATEST}))[here].offset == 10


async def refreshes_metadata_before_raising_topic_changed(bootstrap: str) -> None:
    """Refresh metadata first: a reader's metadata may be older than the topic id that its caller passes."""
    topic = make_topic(bootstrap)
    here = TopicPartition(topic, 0)
    write(bootstrap, topic, [b"first"])
    async with cluster(bootstrap) as older, cluster(bootstrap) as newer:
        assert (await anext(read_range(older, here, 0, 1)))["value"].to_pylist() == [b"first"]
        delete_topic(bootstrap, topic)
        await recreate_topic(bootstrap, topic)
        write(bootstrap, topic, [b"second"])
        await newer.refresh([topic])
        assert newer.topic_id(topic) != older.topic_id(topic)
        rows = await anext(read_range(older, here, 0, 1, RangeOptions(topic_id=newer.topic_id(topic))))
        assert rows["value"].to_pylist() == [b"second"]


async def recreate_topic(bootstrap: str, topic: str) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        try:
            return create_topic(bootstrap, topic)
        except confluent_kafka.KafkaException:  # the old topic is still being deleted
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


CHECKS: list[Callable[[str], Any]] = [
    reads_plain_and_compressed_records,
    reads_arrow,
    returns_at_most_max_poll_records,
    seeks,
    pauses,
    finds_offsets,
    starts_where_auto_offset_reset_says,
    resets_an_out_of_range_offset,
    reads_committed,
    commits,
    commits_at_intervals,
    subscribes,
    iterates,
    reads_ranges,
    reports_deleted_offsets_and_recreated_topics,
    refreshes_metadata_before_raising_topic_changed,
]
