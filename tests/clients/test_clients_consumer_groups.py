"""KIP-848 consumer groups as librdkafka implements them (`group.protocol=consumer`), with a node on real sockets."""

from __future__ import annotations

import itertools
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.cluster import EmbeddedNode

pytestmark = pytest.mark.clients
POLLS_MAX = 1200  # of 50 ms each
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
}
KILLED_MEMBER_PROGRAM = """
import sys, confluent_kafka
server, group, topic = sys.argv[1:]
consumer = confluent_kafka.Consumer({"bootstrap.servers": server, "group.id": group, "group.protocol": "consumer"})
consumer.subscribe([topic])
while True:
    consumer.poll(1)
"""
_numbers = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(SETTINGS) as started:
        yield started


class Member:
    """A consumer with the partitions it owns and the records it read."""

    def __init__(self, node: EmbeddedNode, group: str, *topics: str, **more: object) -> None:
        self.owned: set[tuple[str, int]] = set()
        self.read: list[tuple[int, int, bytes]] = []
        self.is_eager = more.get("partition.assignment.strategy") == "range"
        self.consumer = Consumer(
            {
                "bootstrap.servers": node.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **more,
            }
        )
        self.consumer.subscribe(list(topics), on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned |= {(one.topic, one.partition) for one in partitions}
        if not self.is_eager:
            consumer.incremental_assign(partitions)

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned -= {(one.topic, one.partition) for one in partitions}
        if not self.is_eager:
            consumer.incremental_unassign(partitions)

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.read.append((message.partition(), message.offset(), message.value()))
            self.consumer.commit(message=message, asynchronous=True)
        elif message is not None:
            assert message.error().code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT), message.error()


def poll_until(members: list[Member], done: Callable[[], bool]) -> None:
    for _ in range(POLLS_MAX):
        for member in members:
            member.poll()
        if done():
            return
    raise AssertionError([sorted(member.owned) for member in members])


def shared(members: list[Member], count: int) -> bool:
    """Return whether the members' partitions are disjoint, complete, and balanced to within one."""
    sizes = [len(member.owned) for member in members]
    return (
        len(set().union(*(member.owned for member in members))) == sum(sizes) == count and max(sizes) - min(sizes) < 2
    )


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_mixes_classic_and_consumer_members_while_it_migrates(node: EmbeddedNode, strategy: str) -> None:
    """The group has members of both protocols while it changes online (KIP-848)."""
    topic, group = make_topic(node, 4), uuid.uuid4().hex
    values = [b"%d" % number for number in range(120)]
    produce(node, topic, values[:60])
    old = Member(
        node,
        group,
        topic,
        **{
            "group.protocol": "classic",
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 100,
        },
    )
    poll_until([old], lambda: len(old.owned) == 4)
    new = Member(node, group, topic)
    poll_until([old, new], lambda: shared([old, new], 4))
    produce(node, topic, values[60:])
    poll_until([old, new], lambda: {one[2] for member in (old, new) for one in member.read} == set(values))
    new.consumer.close()
    poll_until([old], lambda: len(old.owned) == 4)
    old.consumer.close()


def make_topic(node: EmbeddedNode, partitions: int, prefix: str = "shared") -> str:
    name = f"{prefix}-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    [made] = admin.create_topics([NewTopic(name, partitions, 1)]).values()
    made.result(10)
    return name


def produce(node: EmbeddedNode, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value, key=value)
    assert producer.flush(20) == 0


def test_partitions_are_rebalanced_when_members_join_and_leave(node: EmbeddedNode) -> None:
    topic, group = make_topic(node, 6), uuid.uuid4().hex
    values = [b"%d" % number for number in range(300)]
    produce(node, topic, values[:150])
    members = [Member(node, group, topic)]
    # Everything is read before partitions move: librdkafka rereads a partition that is revoked while it looks up the start.
    poll_until(members, lambda: len(members[0].read) == 150)
    members.append(Member(node, group, topic))
    poll_until(members, lambda: shared(members, 6))
    produce(node, topic, values[150:])
    members.append(Member(node, group, topic, **{"group.remote.assignor": "uniform"}))
    poll_until(members, lambda: shared(members, 6))
    members[0].consumer.close()
    gone, staying = members[0], members[1:]
    poll_until(staying, lambda: shared(staying, 6))
    poll_until(staying, lambda: {one[2] for member in members for one in member.read} == set(values))
    read = [one for member in (gone, *staying) for one in member.read]
    assert len(read) == len(set(read)), "nothing is read twice: what moved was committed"
    for member in staying:
        member.consumer.close()


def test_partitions_of_a_killed_member_are_reassigned_after_its_session_timeout(node: EmbeddedNode) -> None:
    topic, group = make_topic(node, 4), uuid.uuid4().hex
    other = Member(node, group, topic)
    poll_until([other], lambda: len(other.owned) == 4)
    with subprocess.Popen([sys.executable, "-c", KILLED_MEMBER_PROGRAM, node.bootstrap, group, topic]) as killed_member:
        poll_until([other], lambda: len(other.owned) == 2)
        killed_member.kill()
    poll_until([other], lambda: len(other.owned) == 4)
    other.consumer.close()


def test_consumers_resume_at_committed_offsets_after_a_node_restart() -> None:
    with EmbeddedNode(SETTINGS) as node:
        topic, group = make_topic(node, 3), uuid.uuid4().hex
        produce(node, topic, [b"%d" % number for number in range(60)])
        member = Member(node, group, topic)
        poll_until([member], lambda: len(member.read) == 60)
        member.consumer.commit(asynchronous=False)
        node.kill()
        node.start()
        produce(node, topic, [b"more-%d" % number for number in range(30)])
        poll_until([member], lambda: len({one[2] for one in member.read}) == 90)
        assert len(member.owned) == 3
        member.consumer.close()
        again = Member(node, group, topic)
        produce(node, topic, [b"last"])
        poll_until([again], lambda: any(one[2] == b"last" for one in again.read))
        assert not any(one[2].isdigit() for one in again.read), "what was committed before is not read again"
        again.consumer.close()


def test_a_pattern_subscription_is_assigned_the_matching_topic(node: EmbeddedNode) -> None:
    prefix, group = f"pattern-{uuid.uuid4().hex}", uuid.uuid4().hex
    first = make_topic(node, 2, prefix)
    member = Member(node, group, f"^{prefix}.*")
    poll_until([member], lambda: {one for one, _ in member.owned} == {first})
    assert len(member.owned) == 2
    member.consumer.close()


def test_the_admin_client_describes_and_lists_a_consumer_group(node: EmbeddedNode) -> None:
    topic, group = make_topic(node, 3), uuid.uuid4().hex
    member = Member(node, group, topic, **{"client.id": "seen", "group.instance.id": "first"})
    poll_until([member], lambda: len(member.owned) == 3)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    [described] = admin.describe_consumer_groups([group]).values()
    result = described.result(10)
    [one] = result.members
    assert (one.client_id, one.group_instance_id) == ("seen", "first")
    assert {(part.topic, part.partition) for part in one.assignment.topic_partitions} == member.owned
    listed = admin.list_consumer_groups().result()
    assert [str(found.type) for found in listed.valid if found.group_id == group] == ["ConsumerGroupType.CONSUMER"]
    member.consumer.close()
