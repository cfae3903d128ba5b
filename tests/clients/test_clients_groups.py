"""Classic groups of real clients: two share a topic and commit, one leaves, the other resumes where both were."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client.wire.connection import Connection
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.testing.cluster import EmbeddedNode

pytestmark = [
    pytest.mark.clients,
    # kafka-python loads its schemas with an API that Python 3.11 deprecates.
    pytest.mark.filterwarnings(r"ignore:\w+ is deprecated. Use files\(\) instead:DeprecationWarning"),
]
PARTITIONS = 4
RECORDS_PER_PARTITION = 25  # records per partition
POLL_MS = 50
POLLS_MAX = 1200
SETTINGS = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "100"}
_numbers = itertools.count()


class Reader(Protocol):
    def poll(self) -> list[tuple[int, int]]:
        """Return partition and offset of the records that are there."""

    def owned(self) -> set[int]: ...

    def commit(self) -> None: ...

    def close(self) -> None: ...


class Confluent:
    def __init__(self, server: str, group: str, topic: str, **more: Any) -> None:
        options = {
            "bootstrap.servers": server,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 200,
            **more,
        }
        self._consumer = confluent_kafka.Consumer(options)
        self._consumer.subscribe([topic])

    def poll(self) -> list[tuple[int, int]]:
        found = self._consumer.consume(1000, POLL_MS / 1000)
        assert not any(message.error() for message in found)
        return [(message.partition(), message.offset()) for message in found]

    def owned(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    """A member in its own thread.

    A member that is not polled for a while restarts its join, so two that are polled in turn would never finish.
    """

    def __init__(self, server: str, group: str, topic: str, **more: Any) -> None:
        import kafka  # imported late, so that its warning is filtered

        self._consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=server,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            metadata_max_age_ms=1000,
            **more,
        )
        self._owned: set[int] = set()
        self._found: queue.SimpleQueue[list[tuple[int, int]]] = queue.SimpleQueue()
        self._commands: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            found = self._consumer.poll(timeout_ms=POLL_MS)
            self._found.put([(record.partition, record.offset) for records in found.values() for record in records])
            self._owned = {place.partition for place in self._consumer.assignment()}
            if not self._commands.empty():
                command, done = self._commands.get()
                command()
                done.set_result(None)
                if command == self._close:
                    return

    def _submit(self, command: Callable[[], None]) -> None:
        done: Future[None] = Future()
        self._commands.put((command, done))
        done.result(30)

    def poll(self) -> list[tuple[int, int]]:
        return self._found.get(timeout=30)

    def owned(self) -> set[int]:
        return self._owned

    def commit(self) -> None:
        self._submit(self._consumer.commit)

    def _close(self) -> None:
        self._consumer.close(autocommit=False)

    def close(self) -> None:
        self._submit(self._close)
        self._thread.join(30)


class AioKafka:
    """A member in its own event loop, which runs only during calls."""

    def __init__(self, server: str, group: str, topic: str, **more: Any) -> None:
        self._loop = asyncio.new_event_loop()

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=server,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=6000,
                heartbeat_interval_ms=200,
                **more,
            )
            # All members get their partitions at the same time, so the start must not wait for them.
            self._starting = asyncio.ensure_future(consumer.start())
            return consumer

        self._consumer = self._loop.run_until_complete(start())

    def poll(self) -> list[tuple[int, int]]:
        async def get() -> list[tuple[int, int]]:
            if not self._starting.done():
                await asyncio.wait([self._starting], timeout=POLL_MS / 1000)
                return []
            found = await self._consumer.getmany(timeout_ms=POLL_MS)
            return [(record.partition, record.offset) for records in found.values() for record in records]

        return self._loop.run_until_complete(get())

    def owned(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    def commit(self) -> None:
        self._loop.run_until_complete(self._consumer.commit())

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


CLIENTS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "librdkafka-range": (Confluent, {"partition.assignment.strategy": "range"}),
    "librdkafka-roundrobin": (Confluent, {"partition.assignment.strategy": "roundrobin"}),
    "librdkafka-cooperative": (Confluent, {"partition.assignment.strategy": "cooperative-sticky"}),
    "librdkafka-static": (Confluent, {"group.instance.id": "it"}),
    "kafka-python": (KafkaPython, {}),
    "aiokafka": (AioKafka, {}),
    "aiokafka-sticky": (AioKafka, {"partition_assignment_strategy": [StickyPartitionAssignor]}),
}


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(SETTINGS) as started:
        yield started


def make_topic(node: EmbeddedNode) -> str:
    topic = f"shared-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(10)
    return topic


def produce(node: EmbeddedNode, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 0})
    for partition in range(PARTITIONS):
        for number in range(RECORDS_PER_PARTITION):
            producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(10) == 0


def until(done: Callable[[], bool], *readers: Reader) -> list[list[tuple[int, int]]]:
    """Poll until `done()` and return what each reader has read."""
    read: list[list[tuple[int, int]]] = [[] for _ in readers]
    for _ in range(POLLS_MAX):
        for reader, found in zip(readers, read, strict=True):
            found += reader.poll()
        if done():
            return read
    raise AssertionError(f"not done after {POLLS_MAX} turns: {[reader.owned() for reader in readers]}")


def shared(*readers: Reader) -> bool:
    owned = [reader.owned() for reader in readers]
    return all(owned) and sum(map(len, owned)) == PARTITIONS == len(set().union(*owned))


@pytest.mark.parametrize("name", CLIENTS)
def test_the_remaining_member_resumes_at_the_offsets_committed_by_both(node: EmbeddedNode, name: str) -> None:
    make, more = CLIENTS[name]
    topic = make_topic(node)
    group = f"group-of-{topic}"

    def reader(number: int) -> Reader:
        own = {key: f"{value}-{number}" if key == "group.instance.id" else value for key, value in more.items()}
        made: Reader = make(node.bootstrap, group, topic, **own)
        return made

    one, two = reader(1), reader(2)
    until(lambda: shared(one, two), one, two)
    produce(node, topic)
    everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS_PER_PARTITION)}
    seen: set[tuple[int, int]] = set()
    for _ in range(POLLS_MAX):
        for found in (one.poll(), two.poll()):
            assert not seen.intersection(found), "nobody reads what the other has read"
            seen.update(found)
        if seen == everything:
            break
    assert seen == everything
    one.commit()
    two.commit()
    one.close()
    if "group.instance.id" in more:
        remove_static_member(node, group, "it-1")
    [early] = until(lambda: len(two.owned()) == PARTITIONS, two)
    assert early == [], "what both committed is not read again"
    produce(node, topic)
    again: list[tuple[int, int]] = []
    for _ in range(POLLS_MAX):
        again += two.poll()
        if len(again) >= PARTITIONS * RECORDS_PER_PARTITION:
            break
    assert sorted(again) == [
        (partition, RECORDS_PER_PARTITION + offset)
        for partition in range(PARTITIONS)
        for offset in range(RECORDS_PER_PARTITION)
    ]
    two.close()


def remove_static_member(node: EmbeddedNode, group: str, instance: str) -> None:
    """Remove a static member, as these do not leave by themselves."""

    async def send_leave_group() -> None:
        connection = await Connection.connect("127.0.0.1", node.port)
        identity = LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=instance)
        answer = await connection.request(LeaveGroupRequest(group_id=group, members=[identity]), version=5)
        await connection.close()
        assert [member.error_code for member in answer.members] == [0]

    asyncio.run(send_leave_group())


def test_groups_and_committed_offsets_survive_a_node_restart() -> None:
    with EmbeddedNode(SETTINGS) as other:
        topic = make_topic(other)
        group = f"group-of-{topic}"
        produce(other, topic)
        one = Confluent(other.bootstrap, group, topic)
        [read] = until(lambda: len(one.owned()) == PARTITIONS, one)
        for _ in range(POLLS_MAX):
            read += one.poll()
            if len(read) == PARTITIONS * RECORDS_PER_PARTITION:
                break
        one.commit()
        other.kill()
        other.restart()
        produce(other, topic)
        again: list[tuple[int, int]] = []
        for _ in range(POLLS_MAX):
            again += one.poll()
            if len(again) >= PARTITIONS * RECORDS_PER_PARTITION:
                break
        assert (
            sorted(again)[0] == (0, RECORDS_PER_PARTITION)
            and len(set(again)) == len(again) == PARTITIONS * RECORDS_PER_PARTITION
        )
        one.commit()
        one.close()
        admin = AdminClient({"bootstrap.servers": other.bootstrap})
        described = admin.describe_consumer_groups([group])[group].result(10)
        assert described.state == confluent_kafka.ConsumerGroupState.EMPTY
        wanted = [confluent_kafka.ConsumerGroupTopicPartitions(group)]
        offsets = admin.list_consumer_group_offsets(wanted)[group].result(10).topic_partitions
        assert {place.offset for place in offsets} == {2 * RECORDS_PER_PARTITION} and len(offsets) == PARTITIONS
        admin.delete_consumer_groups([group])[group].result(10)
