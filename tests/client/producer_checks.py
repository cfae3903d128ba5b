"""What a producer must do on any cluster, ours or Kafka's; each check creates its own topics at `bootstrap`."""

from __future__ import annotations

import asyncio
import uuid
from random import Random
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.admin.transactions import describe_transaction
from headrace.client.group.membership import CommittedOffset, GroupMetadata
from headrace.client.producer import transaction_requests
from headrace.client.producer.producer import AsyncProducer
from headrace.client.producer.transaction_requests import (
    AbortableTransactionError,
    InvalidTransactionState,
    ProducerFenced,
    TransactionIdentity,
    end_transaction,
)
from headrace.client.producer.transaction_session import TransactionState
from headrace.client.wire.cluster import Cluster
from headrace.records.kernel import partition_for_key

WAIT_S_MAX = 20.0
T0 = 1_700_000_000_000
COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("ms", "UTC")),
    ]
)


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def make_topic(bootstrap: str, partitions: int = 1, **configs: str) -> str:
    name = unique("t")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in configs.items()})
    admin.create_topics([wanted])[name].result(WAIT_S_MAX)
    return name


def read(
    bootstrap: str, topic: str, partitions: int = 1, isolation: str = "read_committed"
) -> dict[int, list[confluent_kafka.Message]]:
    """Return all messages by partition, as read by another client."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
    found: dict[int, list[Any]] = {index: [] for index in range(partitions)}
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(WAIT_S_MAX)
        assert message is not None, "nothing more comes"
        if message.error() is None:
            found[message.partition()].append(message)
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
    consumer.close()
    return found


async def read_in_thread(*arguments: Any, **named: Any) -> dict[int, list[confluent_kafka.Message]]:
    return await asyncio.to_thread(read, *arguments, **named)


def producing(bootstrap: str, **options: object) -> AsyncProducer:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return AsyncProducer({"bootstrap.servers": bootstrap, **given})


# --- records and rows


async def single_records(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 3)
    async with producing(bootstrap) as producer:
        futures = [
            await producer.send(
                topic, b"%d" % n, b"k%d" % n, timestamp_ms=T0 + n, headers=[("h", b"%d" % n), ("n", None)]
            )
            for n in range(100)
        ]
        sent = [await future for future in futures]
        await (await producer.send(topic, None, b"gone", partition=2))
    found = await read_in_thread(bootstrap, topic, 3)
    for number, one in enumerate(sent):
        assert one.partition == partition_for_key(b"k%d" % number, 3) and one.timestamp_ms == T0 + number
        message = found[one.partition][one.offset]
        assert (message.key(), message.value()) == (b"k%d" % number, b"%d" % number)
        assert message.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, T0 + number)
        assert message.headers() == [("h", b"%d" % number), ("n", None)]
    assert (found[2][-1].key(), found[2][-1].value()) == (b"gone", None)


async def sticky_records_fill_batches(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 4)
    async with producing(bootstrap, batch_size=2000) as producer:
        for number in range(2000):
            await producer.send(topic, b"%05d" % number * 10)
        await producer.flush()
        metrics = producer.metrics()
    found = await read_in_thread(bootstrap, topic, 4)
    assert sorted(m.value()[:5] for some in found.values() for m in some) == [b"%05d" % n for n in range(2000)]
    assert all(len(some) > 100 for some in found.values()) and metrics["batch-size-avg"] > 1500
    assert metrics["record-send-total"] == 2000 and metrics["request-latency-max"] > 0


async def every_codec_and_level(bootstrap: str) -> None:
    levels = {"none": [], "gzip": [1, 9, -1], "snappy": [], "lz4": [1, 9, 17], "zstd": [-5, 3, 19]}
    for codec, some in levels.items():
        for level in some or [None]:
            topic = make_topic(bootstrap)
            options = {} if level is None else {f"compression_{codec}_level": level}
            async with producing(bootstrap, compression_type=codec, batch_size=50_000, **options) as producer:
                for number in range(2000):
                    await producer.send(topic, b"value %d " % number * 4)
                rows = pa.record_batch({"value": pa.array([b"row %d" % n * 9 for n in range(20_000)], pa.binary())})
                ranges = await (await producer.send_batch(topic, rows))
                assert sum(one.rows for one in ranges) == 20_000
                rate = producer.metrics()["compression-rate-avg"]
                assert rate == 1 if codec == "none" else rate < 0.7
            found = [message.value() for message in (await read_in_thread(bootstrap, topic))[0]]
            expected = [b"value %d " % n * 4 for n in range(2000)] + [b"row %d" % n * 9 for n in range(20_000)]
            assert found == expected, (codec, level)


async def every_acks_setting(bootstrap: str) -> None:
    for acks in ("0", "1", "all", -1):
        topic = make_topic(bootstrap)
        async with producing(bootstrap, acks=acks) as producer:
            sent = [await producer.send(topic, b"%d" % n) for n in range(10)]
            offsets = [(await one).offset for one in sent]
            assert offsets == ([-1] * 10 if acks == "0" else list(range(10)))
            rows = pa.record_batch({"value": pa.array([b"x" * 100] * 50_000, pa.binary())})
            ranges = await (await producer.send_batch(topic, rows))
            assert sum(one.rows for one in ranges) == 50_000
        async with producing(bootstrap) as producer:  # acks=0 leaves them in the socket: wait until they are written
            while (await (await producer.send(topic, b"end"))).offset < 50_010:
                await asyncio.sleep(0.05)
        values = [message.value() for message in (await read_in_thread(bootstrap, topic))[0]]
        assert len([value for value in values if value != b"end"]) == 50_010


async def rows_by_key(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 5)
    count = 20_000
    keys = [None if n % 7 == 0 else b"key-%d" % (n % 1000) for n in range(count)]
    rows = pa.table(
        {
            "key": keys,
            "value": [None if n % 11 == 0 else b"value-%d" % n for n in range(count)],
            "headers": [[{"key": "n", "value": b"%d" % n}] if n % 3 else [] for n in range(count)],
            "timestamp": pa.array([T0 + n for n in range(count)], pa.timestamp("ms", "UTC")),
        },
        COLUMNS,
    )
    async with producing(bootstrap) as producer:
        ranges = await (await producer.send_batch(topic, rows))
    found = await read_in_thread(bootstrap, topic, 5)
    assert sum(one.rows for one in ranges) == count == sum(map(len, found.values()))
    seen: set[int] = set()
    for index, messages in found.items():
        keyed = [message.timestamp()[1] - T0 for message in messages if message.key() is not None]
        assert keyed == sorted(keyed)  # each partition keeps the order
        for message in messages:
            number = message.timestamp()[1] - T0
            seen.add(number)
            assert message.key() == keys[number]
            assert message.value() == (None if number % 11 == 0 else b"value-%d" % number)
            assert (message.headers() or []) == ([("n", b"%d" % number)] if number % 3 else [])
            assert message.key() is None or partition_for_key(message.key(), 5) == index
    assert seen == set(range(count))


async def rows_with_a_partition_column(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 3)
    rows = pa.table(
        {
            "key": [b"same", b"same", None, None],
            "value": ["a", "b", "c", "d"],
            "partition": pa.array([2, None, 0, 2], pa.int64()),
        }
    )
    async with producing(bootstrap) as producer:
        await (await producer.send_batch(topic, rows))
        await (await producer.send_batch(topic, rows.select(["value"]), partition=1))
        assert await (await producer.send_batch(topic, rows.slice(0, 0))) == []
        for wrong in (pa.array([3], pa.int32()), pa.array([-1], pa.int32())):
            with pytest.raises(KafkaError, match="partitions 0 to 2"):
                await producer.send_batch(topic, pa.record_batch({"value": ["x"], "partition": wrong}))
        with pytest.raises(KafkaError, match="INVALID_RECORD"):
            await producer.send_batch(topic, pa.record_batch({"val": ["x"]}))
        with pytest.raises(TypeError):
            await producer.send_batch(topic, [b"x"])
    found = await read_in_thread(bootstrap, topic, 3)
    by_hash = partition_for_key(b"same", 3)
    expected = {0: [b"c"], 1: [b"a", b"b", b"c", b"d"], 2: [b"a", b"d"]}
    expected[by_hash] = sorted([*expected[by_hash], b"b"])
    assert {index: sorted(message.value() for message in some) for index, some in found.items()} == expected


async def partitioners(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 3)
    rows = pa.table({"key": [b"k"] * 6, "value": ["a", "b", "c", "d", "e", "f"]})
    async with producing(bootstrap, **{"partitioner.class": "RoundRobinPartitioner"}) as producer:
        await asyncio.gather(*[await producer.send(topic, b"%d" % n, b"k") for n in range(6)])
        await (await producer.send_batch(topic, rows))
    found = await read_in_thread(bootstrap, topic, 3)
    assert {index: [m.value() for m in some] for index, some in found.items()} == {
        0: [b"0", b"3", b"a", b"d"],
        1: [b"1", b"4", b"b", b"e"],
        2: [b"2", b"5", b"c", b"f"],
    }
    topic = make_topic(bootstrap, 3)
    chosen = AsyncProducer(
        {"bootstrap.servers": bootstrap}, partitioner=lambda topic, key, value, count: (value or b"\x00")[0] % count
    )
    async with chosen as producer:
        await asyncio.gather(*[await producer.send(topic, b"%c" % n) for n in range(9)])
        await (await producer.send_batch(topic, rows))
    for index, some in (await read_in_thread(bootstrap, topic, 3)).items():
        assert len(some) == 5 and all(message.value()[0] % 3 == index for message in some)


async def batches_are_split_to_fit_max_message_bytes(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 1, max_message_bytes="20000")
    async with producing(bootstrap) as producer:
        rows = pa.record_batch({"value": pa.array([b"%06d" % n * 10 for n in range(20_000)], pa.binary())})
        ranges = await (await producer.send_batch(topic, rows))
        assert sum(one.rows for one in ranges) == 20_000 and producer.metrics()["batch-split-total"] > 0
        with pytest.raises(KafkaError) as caught:
            await (await producer.send(topic, b"x" * 30_000))
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert (await (await producer.send(topic, b"after"))).offset == 20_000
    values = [message.value() for message in (await read_in_thread(bootstrap, topic))[0]]
    assert values == [b"%06d" % n * 10 for n in range(20_000)] + [b"after"]


# --- transactions


async def transactions(bootstrap: str, *, implicit: bool) -> None:
    topic, group = make_topic(bootstrap, 2), unique("group")
    async with producing(bootstrap, transactional_id=unique("x"), linger_ms=0) as producer:
        transaction = producer.transaction
        with pytest.raises(KafkaError, match="INVALID_TXN_STATE"):
            await producer.send(topic, b"too early")
        await transaction.init()
        assert transaction.is_implicit is implicit
        before = transaction.identity
        for number in range(4):
            await transaction.begin()
            sent = [await producer.send(topic, b"%d" % number, partition=n % 2) for n in range(6)]
            rows = pa.record_batch({"value": pa.array([b"%d" % number] * 5000, pa.binary())})
            arrow = await producer.send_batch(topic, rows, partition=1)
            await transaction.send_offsets({TopicPartition(topic, 0): CommittedOffset(number)}, GroupMetadata(group))
            if number % 2:
                await transaction.commit()
                await asyncio.gather(*sent, arrow)
            else:
                await transaction.abort()
        after = transaction.identity
        assert after.producer_id == before.producer_id
        # With older clients, the epoch rises only after a batch with an unknown outcome was given up.
        assert after.producer_epoch > before.producer_epoch or not implicit
        await transaction.begin()
        await transaction.commit()  # an empty transaction
        await transaction.begin()
        await transaction.abort()
        assert transaction.state is TransactionState.READY
    found = await read_in_thread(bootstrap, topic, 2)
    assert [message.value() for message in found[0]] == [b"1"] * 3 + [b"3"] * 3
    assert [message.value() for message in found[1]] == [b"1"] * 5003 + [b"3"] * 5003
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (committed,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=WAIT_S_MAX)
    consumer.close()
    assert committed.offset == 3


async def transactions_of_version_2(bootstrap: str) -> None:
    await transactions(bootstrap, implicit=True)


async def transactions_before_version_2(bootstrap: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction_requests, "is_implicit", lambda connection: False)
        await transactions(bootstrap, implicit=False)


async def closing_aborts_the_open_transaction(bootstrap: str) -> None:
    topic, name = make_topic(bootstrap), unique("x")
    async with producing(bootstrap, transactional_id=name) as producer:
        await producer.transaction.init()
        await producer.transaction.begin()
        await (await producer.send(topic, b"open"))
    async with producing(bootstrap, transactional_id=name) as producer:
        await producer.transaction.init()
        await producer.transaction.begin()
        await (await producer.send(topic, b"committed"))
        await producer.transaction.commit()
    assert [message.value() for message in (await read_in_thread(bootstrap, topic))[0]] == [b"committed"]


async def another_client_ends_a_prepared_transaction(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    host, _, port = bootstrap.rpartition(":")
    identities: list[TransactionIdentity] = []
    for commit in (True, False):
        producer = producing(bootstrap, transactional_id=unique("x"))
        async with producer, Cluster([(host, int(port))]) as cluster:
            await producer.transaction.init()
            await producer.transaction.begin()
            await producer.send(topic, b"%d" % commit)
            identities.append(await producer.transaction.prepare())
            with pytest.raises(KafkaError, match="prepared"):
                await producer.send(topic, b"too late")
            await producer.close()
            for _ in range(3):  # repeated, as if the responses were lost
                after = await end_transaction(cluster, identities[-1], commit=commit)
            assert after.producer_epoch == identities[-1].producer_epoch + 1
            with pytest.raises((InvalidTransactionState, ProducerFenced)):
                await end_transaction(cluster, identities[-1], commit=not commit)
    assert [message.value() for message in (await read_in_thread(bootstrap, topic))[0]] == [b"1"]


async def a_newer_producer_fences_the_older_one(bootstrap: str) -> None:
    topic, name = make_topic(bootstrap), unique("x")
    async with (
        producing(bootstrap, transactional_id=name) as first,
        producing(bootstrap, transactional_id=name) as second,
    ):
        await first.transaction.init()
        await first.transaction.begin()
        await (await first.send(topic, b"first"))
        left = first.transaction.identity
        await second.transaction.init()
        await second.transaction.begin()
        await (await second.send(topic, b"second"))
        await second.transaction.commit()
        with pytest.raises(ProducerFenced):
            await first.transaction.commit()
        with pytest.raises(ProducerFenced):
            await first.transaction.begin()
        host, _, port = bootstrap.rpartition(":")
        async with Cluster([(host, int(port))]) as cluster:
            with pytest.raises(ProducerFenced):
                await end_transaction(cluster, left, commit=True)
    assert [message.value() for message in (await read_in_thread(bootstrap, topic))[0]] == [b"second"]


async def a_failed_batch_requires_an_abort(bootstrap: str) -> None:
    topic, small = make_topic(bootstrap), make_topic(bootstrap, 1, max_message_bytes="1000")
    for implicit in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not implicit:
                patch.setattr(transaction_requests, "is_implicit", lambda connection: False)
            async with producing(bootstrap, transactional_id=unique("x")) as producer:
                await producer.transaction.init()
                await producer.transaction.begin()
                await (await producer.send(topic, b"lost"))
                with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                    await (await producer.send(small, b"x" * 5000))
                with pytest.raises(KafkaError, match="must be aborted"):
                    await producer.transaction.commit()
                with pytest.raises(KafkaError, match="must be aborted"):
                    await producer.send(topic, b"more")
                await producer.transaction.abort()
                await producer.transaction.begin()
                await producer.send(topic, b"kept")
                await producer.transaction.commit()
    assert [message.value() for message in (await read_in_thread(bootstrap, topic))[0]] == [b"kept"] * 2


async def a_prepared_transaction_outlives_its_producer(bootstrap: str) -> None:
    """Check two-phase commit (KIP-939), for brokers that offer it."""
    topic = make_topic(bootstrap)
    host, _, port = bootstrap.rpartition(":")
    options = {"transactional_id": unique("x"), "transaction_two_phase_commit_enable": True}
    async with producing(bootstrap, **options) as producer:
        await producer.transaction.init()
        await producer.transaction.begin()
        await producer.send(topic, b"prepared")
        prepared = await producer.transaction.prepare()
    async with Cluster([(host, int(port))]) as cluster:
        assert (await describe_transaction(cluster, prepared.transactional_id)).timeout_ms is None
        await end_transaction(cluster, prepared, commit=True)
    assert [message.value() for message in (await read_in_thread(bootstrap, topic))[0]] == [b"prepared"]


CHECKS = [
    single_records,
    sticky_records_fill_batches,
    every_codec_and_level,
    every_acks_setting,
    rows_by_key,
    rows_with_a_partition_column,
    partitioners,
    batches_are_split_to_fit_max_message_bytes,
    transactions_of_version_2,
    transactions_before_version_2,
    closing_aborts_the_open_transaction,
    another_client_ends_a_prepared_transaction,
    a_newer_producer_fences_the_older_one,
    a_failed_batch_requires_an_abort,
]


# --- brokers that are killed; `peer` has kill and start


async def kill(peer: Any) -> None:
    await asyncio.to_thread(peer.kill)
    await asyncio.to_thread(peer.start)


async def sends_survive_kills(peer: Any, kills: int, *, rows: bool) -> None:
    topic = make_topic(peer.bootstrap, 2)
    random_source = Random(1)
    futures: list[Any] = []
    async with producing(peer.bootstrap, retry_backoff_ms=10, linger_ms=1, batch_size=2000) as producer:

        async def send(numbers: range) -> None:
            for number in numbers:
                if rows:
                    some = pa.record_batch({"value": pa.array([b"%d" % number] * 3, pa.binary())})
                    futures.append(await producer.send_batch(topic, some, partition=number % 2))
                else:
                    futures.append(await producer.send(topic, b"%d" % number, partition=number % 2))
                if number % 20 == 0:
                    await asyncio.sleep(0.001)

        for turn in range(kills):
            sending = asyncio.ensure_future(send(range(1000 * turn, 1000 * turn + 1000)))
            await asyncio.sleep(0.01 + random_source.random() * 0.02)
            await kill(peer)
            await sending
        await producer.flush()
        assert all(future.exception() is None for future in futures)
    for index, messages in (await read_in_thread(peer.bootstrap, topic, 2)).items():
        expected = [b"%d" % n for n in range(1000 * kills) if n % 2 == index for _ in range(3 if rows else 1)]
        assert [message.value() for message in messages] == expected


async def records_survive_kills(peer: Any, kills: int) -> None:
    await sends_survive_kills(peer, kills, rows=False)


async def rows_survive_kills(peer: Any, kills: int) -> None:
    await sends_survive_kills(peer, kills, rows=True)


async def transactions_survive_kills(peer: Any, kills: int) -> None:
    """Redo each transaction until it is committed; each must be there once, whole and in order."""
    topic = make_topic(peer.bootstrap, 2)
    random_source = Random(2)
    killing = asyncio.ensure_future(asyncio.sleep(0))
    async with producing(peer.bootstrap, transactional_id=unique("x"), retry_backoff_ms=10) as producer:
        transaction = producer.transaction
        await transaction.init()
        for number in range(10 * kills):
            if number % 10 == 5:
                await killing
                killing = asyncio.ensure_future(kill(peer))
            while transaction.state is TransactionState.READY:
                await transaction.begin()
                try:
                    for index in range(40):
                        await producer.send(topic, b"%d-%d" % (number, index), partition=index % 2)
                        if random_source.random() < 0.1:
                            await asyncio.sleep(0.001)
                    await transaction.commit()
                except AbortableTransactionError:
                    await transaction.abort()
                else:
                    break
        await killing
    found = await read_in_thread(peer.bootstrap, topic, 2)
    for partition, messages in found.items():
        expected = [b"%d-%d" % (n, i) for n in range(10 * kills) for i in range(40) if i % 2 == partition]
        assert [message.value() for message in messages] == expected


KILL_CHECKS = [records_survive_kills, rows_survive_kills, transactions_survive_kills]
