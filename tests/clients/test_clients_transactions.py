"""Transactions of real clients: commits and aborts are atomic, offsets are included, zombies are fenced."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.cluster import EmbeddedNode

pytestmark = pytest.mark.clients
WAIT_S = 20.0
PARTITIONS = 3
SETTINGS = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "3"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(SETTINGS) as started:
        yield started


def make_topic(node: EmbeddedNode) -> str:
    name = f"transactional-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(WAIT_S)
    return name


def make_producer(node: EmbeddedNode, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": transactional_id, "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    return producer


def write(producer: Producer, topic: str, *values: bytes) -> None:
    """Write and flush the values: librdkafka drops unsent records when a transaction is aborted."""
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0


def read(node: EmbeddedNode, topic: str, isolation: str) -> set[bytes]:
    """Return all values that a new reader sees before the ends of the partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "nobody",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: list[Any] = []
    ended: set[Any] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(WAIT_S)
        assert message is not None, "nothing comes"
        if message.error():
            ended.add(message.partition())
        else:
            found.append(message.value())
    consumer.close()
    assert len(found) == len(set(found))
    return set(found)


def test_readers_see_committed_but_not_aborted_or_open_transactions(node: EmbeddedNode) -> None:
    topic, producer = make_topic(node), make_producer(node, "one")
    producer.begin_transaction()
    write(producer, topic, b"a1", b"a2", b"a3")
    assert read(node, topic, "read_committed") == set()
    assert read(node, topic, "read_uncommitted") == {b"a1", b"a2", b"a3"}
    producer.commit_transaction(WAIT_S)
    producer.begin_transaction()
    write(producer, topic, b"b1", b"b2", b"b3")
    producer.abort_transaction(WAIT_S)
    producer.begin_transaction()
    write(producer, topic, b"c1", b"c2")
    producer.commit_transaction(WAIT_S)
    assert read(node, topic, "read_committed") == {b"a1", b"a2", b"a3", b"c1", b"c2"}
    assert read(node, topic, "read_uncommitted") > {b"b1", b"b2", b"b3"}


def test_a_second_producer_with_the_same_transactional_id_fences_the_first(node: EmbeddedNode) -> None:
    topic, zombie = make_topic(node), make_producer(node, "two")
    zombie.begin_transaction()
    write(zombie, topic, b"zombie")
    successor = make_producer(node, "two")
    successor.begin_transaction()
    write(successor, topic, b"heir")
    with pytest.raises(KafkaException):
        zombie.commit_transaction(WAIT_S)
    successor.commit_transaction(WAIT_S)
    assert read(node, topic, "read_committed") == {b"heir"}


def test_a_transaction_that_exceeds_its_timeout_is_aborted() -> None:
    settings = {**SETTINGS, "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with EmbeddedNode(settings) as node:
        topic = make_topic(node)
        producer = Producer(
            {"bootstrap.servers": node.bootstrap, "transactional.id": "slow", "transaction.timeout.ms": 1000}
        )
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        write(producer, topic, b"late")
        quick = make_producer(node, "quick")
        quick.begin_transaction()
        write(quick, topic, b"in time")  # after it in the same partition
        quick.commit_transaction(WAIT_S)
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "nobody"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(WAIT_S)  # blocked until the first transaction ends
        assert message is not None and message.value() == b"in time"
        consumer.close()


def test_consumed_offsets_and_output_are_committed_atomically(node: EmbeddedNode) -> None:
    source, target, group = make_topic(node), make_topic(node), "copiers"
    writer = Producer({"bootstrap.servers": node.bootstrap})
    write(writer, source, *(b"%d" % number for number in range(30)))
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([source])
    producer = make_producer(node, "copier")
    for outcome in (producer.abort_transaction, producer.commit_transaction):
        seen: list[bytes] = []
        while len(seen) < 30:
            message = consumer.poll(WAIT_S)
            assert message is not None and message.error() is None
            seen.append(message.value())
        places = consumer.assignment()
        producer.begin_transaction()
        write(producer, target, *(b"copy of " + value for value in seen))
        producer.send_offsets_to_transaction(consumer.position(places), consumer.consumer_group_metadata(), WAIT_S)
        outcome(WAIT_S)
        committed = {one.partition: one.offset for one in consumer.committed(places, WAIT_S)}
        if outcome == producer.abort_transaction:
            assert set(committed.values()) == {-1001}
            for place in places:
                consumer.seek(TopicPartition(place.topic, place.partition, 0))
        else:
            assert committed == {0: 10, 1: 10, 2: 10}
    assert read(node, target, "read_committed") == {b"copy of %d" % number for number in range(30)}
    consumer.close()


def test_committed_aborted_and_open_transactions_survive_a_restart() -> None:
    with EmbeddedNode(SETTINGS) as node:
        topic, producer = make_topic(node), make_producer(node, "one")
        for value, outcome in ((b"yes", producer.commit_transaction), (b"no", producer.abort_transaction)):
            producer.begin_transaction()
            write(producer, topic, value)
            outcome(WAIT_S)
        producer.begin_transaction()
        write(producer, topic, b"open")
        node.restart()
        assert read(node, topic, "read_committed") == {b"yes"}
        write(producer, topic, b"open too")
        producer.commit_transaction(WAIT_S)
        assert read(node, topic, "read_committed") == {b"yes", b"open", b"open too"}


def test_aiokafka_commits_and_aborts(node: EmbeddedNode) -> None:
    topic = make_topic(node)

    async def scenario() -> list[bytes]:
        async with AIOKafkaProducer(bootstrap_servers=node.bootstrap, transactional_id="asyncio") as producer:
            for number in range(6):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"%d" % number, partition=0)
                await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
        consumer = AIOKafkaConsumer(
            bootstrap_servers=node.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        consumer.assign([AioPartition(topic, 0)])
        async with consumer:
            return [(await asyncio.wait_for(consumer.getone(), WAIT_S)).value for _ in range(3)]

    assert asyncio.run(scenario()) == [b"0", b"2", b"4"]
