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
from tools.prove.client_conformance.server import WAIT_S_MAX, Stage, unique

COPIED = 400


def transactions(stage: Stage) -> str:
    seen = _commits_and_aborts(stage)
    for protocol in ("classic", "consumer"):
        asyncio.run(_copy(stage, protocol))
    _zombie(stage)
    asyncio.run(_ended_by_another(stage))
    return f"{seen} transactions over 3 partitions, 2 x {COPIED} records copied with their offsets, zombies fenced"


def _commits_and_aborts(stage: Stage) -> int:
    topic, rounds = stage.topic(3), 30
    with Producer(stage.options(transactional_id=unique("tx"))) as producer:
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
    good, everything = [b"%d" % n for n in range(rounds) if n % 3 != 1], [b"%d" % n for n in range(rounds)]
    for isolation, wanted in (("read_committed", good), ("read_uncommitted", everything)):
        for records in stage.read(topic, 3, isolation):
            assert [one.value for one in records] == wanted, f"ours under {isolation}"
        for messages in stage.confluent_read(topic, 3, isolation):
            assert [one.value() for one in messages] == wanted, f"librdkafka under {isolation}"
    return rounds


async def _copy(stage: Stage, protocol: str) -> None:
    """Copy in transactions with offsets, aborting every third one and reading its input again."""
    source, target, group = await asyncio.to_thread(lambda: (stage.topic(2), stage.topic(2), unique("g")))
    async with AsyncProducer(stage.options()) as producer:
        for number in range(COPIED):
            await producer.send(source, b"%d" % number, partition=number % 2)
    reading = stage.options(
        group_id=group,
        group_protocol=protocol,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_poll_records=25,
    )
    places = [TopicPartition(source, 0), TopicPartition(source, 1)]
    async with (
        AsyncProducer(stage.options(transactional_id=group)) as producer,
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
    for index, records in enumerate(await asyncio.to_thread(stage.read, target, 2)):
        values = [one.value for one in records]
        assert values == [b"%d" % number for number in range(index, COPIED, 2)], (
            f"{protocol}: partition {index} of the copy"
        )


def _zombie(stage: Stage) -> None:
    topic, name = stage.topic(), unique("tx")
    with (
        Producer(stage.options(transactional_id=name)) as first,
        Producer(stage.options(transactional_id=name)) as second,
    ):
        first.transaction.init()
        first.transaction.begin()
        first.send(topic, b"zombie").result(WAIT_S_MAX)
        second.transaction.init()
        for attempt in ("commit", "again"):
            try:
                first.transaction.commit()
            except FatalTransactionError:
                pass
            else:
                raise AssertionError(f"{attempt}: a zombie could commit")
        second.transaction.begin()
        second.send(topic, b"alive")
        second.transaction.commit()
    assert [one.value for one in stage.read(topic)[0]] == [b"alive"]
    with Consumer(stage.options(auto_offset_reset="earliest", isolation_level="read_committed")) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert [one.value for one in consumer.poll(WAIT_S_MAX)] == [b"alive"]


async def _ended_by_another(stage: Stage) -> None:
    topic = await asyncio.to_thread(stage.topic)
    async with Cluster(addresses(stage.bootstrap)) as cluster:
        for commit in (True, False):
            name = unique("tx")
            async with AsyncProducer(stage.options(transactional_id=name)) as producer:
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
            raise AssertionError("what was decided could be decided otherwise")
    assert [one.value for one in (await asyncio.to_thread(stage.read, topic))[0]] == [b"True"]
