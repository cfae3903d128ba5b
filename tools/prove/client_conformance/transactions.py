"""Transactions: atomicity, offsets with records, fenced zombies, and a transaction ended by another process."""

from __future__ import annotations

import asyncio

from headrace.base.errors import KafkaError
from headrace.client import AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from headrace.client.producer.transaction_requests import (
    FatalTransactionError,
    InvalidTransactionState,
    end_transaction,
)
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.opening import addresses
from tools.prove.client_conformance.server import WAIT_S_MAX, ServerUnderTest, unique

COPIED = 400


def transactions(server: ServerUnderTest) -> str:
    seen = _commits_and_aborts(server)
    for protocol in ("classic", "consumer"):
        asyncio.run(_copy(server, protocol))
    _zombie(server)
    asyncio.run(_ended_by_another(server))
    return f"{seen} transactions over 3 partitions, 2 x {COPIED} records copied with their offsets, zombies fenced"


def _commits_and_aborts(server: ServerUnderTest) -> int:
    topic, rounds = server.topic(3), 30
    with Producer(server.options(transactional_id=unique("tx"))) as producer:
        producer.transaction.init()
        for number in range(rounds):
            producer.transaction.begin()
            for index in range(3):
                producer.send(topic, b"%d" % number, partition=index)
            if number % 3 == 1:
                producer.flush()
                producer.transaction.abort()
            else:
                producer.transaction.commit()
    committed, everything = [b"%d" % n for n in range(rounds) if n % 3 != 1], [b"%d" % n for n in range(rounds)]
    for isolation, wanted in (("read_committed", committed), ("read_uncommitted", everything)):
        for records in server.read(topic, 3, isolation):
            assert [one.value for one in records] == wanted, f"Headrace's consumer with {isolation}"
        for messages in server.confluent_read(topic, 3, isolation):
            assert [one.value() for one in messages] == wanted, f"librdkafka with {isolation}"
    return rounds


async def _copy(server: ServerUnderTest, protocol: str) -> None:
    """Copy in transactions with offsets, aborting every third one and reading its input again."""
    source, target, group = await asyncio.to_thread(lambda: (server.topic(2), server.topic(2), unique("g")))
    async with AsyncProducer(server.options()) as producer:
        for number in range(COPIED):
            await producer.send(source, b"%d" % number, partition=number % 2)
    reading = server.options(
        group_id=group,
        group_protocol=protocol,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_poll_records=25,
    )
    places = [TopicPartition(source, 0), TopicPartition(source, 1)]
    async with (
        AsyncProducer(server.options(transactional_id=group)) as producer,
        AsyncConsumer(reading) as consumer,
        asyncio.timeout(WAIT_S_MAX),
    ):
        consumer.subscribe([source])
        await producer.transaction.init()
        done = turn = 0
        while done < COPIED:
            before = consumer.positions()
            records = await consumer.poll(1.0)
            if not records:
                continue
            await producer.transaction.begin()
            for record in records:
                await producer.send(target, record.value, partition=record.partition)
            await producer.transaction.send_offsets(consumer.positions(), consumer.group_metadata())
            turn += 1
            if turn % 3 == 0:
                await producer.flush()
                await producer.transaction.abort()
                for place in {TopicPartition(one.topic, one.partition) for one in records}:
                    first = min(one.offset for one in records if one.partition == place.partition)
                    consumer.seek(place, before[place].offset if place in before else first)
                continue
            await producer.transaction.commit()
            done += len(records)
        committed = await consumer.committed(places)
        assert all(committed[place].offset == COPIED // 2 for place in places), committed
    for index, records in enumerate(await asyncio.to_thread(server.read, target, 2)):
        values = [one.value for one in records]
        assert values == [b"%d" % number for number in range(index, COPIED, 2)], (
            f"{protocol}: partition {index} of the copy"
        )


def _zombie(server: ServerUnderTest) -> None:
    topic, name = server.topic(), unique("tx")
    with (
        Producer(server.options(transactional_id=name)) as first,
        Producer(server.options(transactional_id=name)) as second,
    ):
        first.transaction.init()
        first.transaction.begin()
        first.send(topic, b"zombie").result(WAIT_S_MAX)
        second.transaction.init()
        for attempt in ("first", "second"):
            try:
                first.transaction.commit()
            except FatalTransactionError:
                pass
            else:
                raise AssertionError(f"{attempt} commit: a zombie could commit")
        second.transaction.begin()
        second.send(topic, b"alive")
        second.transaction.commit()
    assert [one.value for one in server.read(topic)[0]] == [b"alive"]
    with Consumer(server.options(auto_offset_reset="earliest", isolation_level="read_committed")) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert [one.value for one in consumer.poll(WAIT_S_MAX)] == [b"alive"]


async def _ended_by_another(server: ServerUnderTest) -> None:
    topic = await asyncio.to_thread(server.topic)
    async with Cluster(addresses(server.bootstrap)) as cluster:
        for commit in (True, False):
            name = unique("tx")
            async with AsyncProducer(server.options(transactional_id=name)) as producer:
                await producer.transaction.init()
                await producer.transaction.begin()
                await producer.send(topic, b"%s" % str(commit).encode())
                identity = await producer.transaction.prepare()
            await end_transaction(cluster, identity, commit=commit)  # after the producer has closed
            await end_transaction(cluster, identity, commit=commit)  # as if the response had been lost
            try:
                await end_transaction(cluster, identity, commit=not commit)
            except (InvalidTransactionState, FatalTransactionError, KafkaError):
                continue
            raise AssertionError("the outcome of a transaction could be reversed")
    assert [one.value for one in (await asyncio.to_thread(server.read, topic))[0]] == [b"True"]
