"""Groups and transactions on a new node with ACLs: an ordinary user needs the same permissions as in Kafka, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer
from tests.security.plain_logins import librdkafka_options, login_options, server_settings

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client import Admin, Consumer, NewTopic, Producer
from headrace.coordinators.partitioning import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from headrace.security.acls import Acl, Pattern, Permission
from headrace.security.resources import Operation, Resource
from headrace.testing.cluster import EmbeddedNode

pytestmark = pytest.mark.clients
TOPIC, GROUP, TRANSACTION = "orders", "billing", "copier"
WAIT_S = 20
SETTINGS = {
    **server_settings("alice", "mallory"),
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
}
# Exactly the permissions that Kafka requires of a consumer in a group and of a transactional producer.
ALICE_PERMISSIONS = [
    (Resource.TOPIC, TOPIC, Operation.READ),
    (Resource.TOPIC, TOPIC, Operation.WRITE),
    (Resource.GROUP, GROUP, Operation.READ),
    (Resource.TRANSACTIONAL_ID, TRANSACTION, Operation.WRITE),
]


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    """Start a new node, on which the internal topics do not exist yet."""
    with EmbeddedNode(SETTINGS) as made:
        with Admin(options(made, "admin")) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=2)])
            admin.create_acls(
                [
                    Acl(resource, name, Pattern.LITERAL, "User:alice", "*", operation, Permission.ALLOW)
                    for resource, name, operation in ALICE_PERMISSIONS
                ]
            )
        yield made


def options(node: EmbeddedNode, user: str, **more: Any) -> dict[str, str]:
    return {
        "bootstrap.servers": node.bootstrap,
        **login_options(user),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def confluent_options(node: EmbeddedNode, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.bootstrap,
        **librdkafka_options(user),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def produce(node: EmbeddedNode, user: str, *values: bytes) -> None:
    with Producer(options(node, user)) as producer:
        for delivery in [producer.send(TOPIC, value) for value in values]:
            delivery.result(WAIT_S)


def consume(consumer: Consumer, count: int) -> list[bytes]:
    consumer.subscribe([TOPIC])
    values: list[bytes] = []
    while len(values) < count:
        found = consumer.poll(WAIT_S)
        assert found, "nothing came"
        values += [record.value for record in found]
    return sorted(values)


@pytest.mark.parametrize("user", ["admin", "alice"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_our_consumer_joins_a_group(node: EmbeddedNode, user: str, protocol: str) -> None:
    produce(node, user, b"a", b"b")
    with Consumer(
        options(node, user, group_id=GROUP, auto_offset_reset="earliest", group_protocol=protocol)
    ) as consumer:
        assert consume(consumer, 2) == [b"a", b"b"]
        consumer.commit()
    with Admin(options(node, user)) as admin:
        assert sum(committed.offset for committed in admin.committed_offsets(GROUP).values()) == 2


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_librdkafka_joins_a_group(node: EmbeddedNode, protocol: str) -> None:
    produce(node, "alice", b"a")
    consumer = ConfluentConsumer(
        confluent_options(node, "alice", group_id=GROUP, auto_offset_reset="earliest", group_protocol=protocol)
    )
    try:
        consumer.subscribe([TOPIC])
        message = consumer.poll(WAIT_S)
        assert message is not None and message.error() is None and message.value() == b"a"
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def test_our_clients_consume_and_produce_in_one_transaction(node: EmbeddedNode) -> None:
    produce(node, "alice", b"in")
    with (
        Consumer(
            options(
                node, "alice", group_id=GROUP, auto_offset_reset="earliest", isolation_level="read_committed",
                enable_auto_commit="false",
            )
        ) as consumer,
        Producer(options(node, "alice", transactional_id=TRANSACTION)) as producer,
    ):  # fmt: skip
        assert consume(consumer, 1) == [b"in"]
        producer.transaction.init()
        producer.transaction.begin()
        producer.send(TOPIC, b"out").result(WAIT_S)
        producer.transaction.send_offsets(consumer.positions(), consumer.group_metadata())
        producer.transaction.commit()
        found: list[bytes] = []
        while not found:
            found = [record.value for record in consumer.poll(WAIT_S)]
        assert found == [b"out"]


def test_librdkafka_commits_a_transaction(node: EmbeddedNode) -> None:
    producer = ConfluentProducer(confluent_options(node, "alice", transactional_id=TRANSACTION))
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, b"x")
    producer.commit_transaction(WAIT_S)


def test_internal_topics_are_created_for_users_who_may_not_create_topics(node: EmbeddedNode) -> None:
    """Use a client that may not create topics."""
    with Consumer(options(node, "alice", group_id=GROUP)) as consumer:
        consumer.subscribe([TOPIC])
        consumer.poll(0.1)
    with Producer(options(node, "alice", transactional_id=TRANSACTION)) as producer:
        producer.transaction.init()
    assert {GROUPS_TOPIC, TRANSACTIONS_TOPIC} <= set(node.node.broker.image.topics)
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"), Admin(options(node, "alice")) as admin:
        admin.create_topics([NewTopic("other")])


def test_a_user_without_permissions_gets_authorization_errors(node: EmbeddedNode) -> None:
    produce(node, "alice", b"a")
    with (
        Consumer(options(node, "mallory", group_id=GROUP)) as consumer,
        pytest.raises(KafkaError) as refused,
    ):
        consumer.subscribe([TOPIC])
        consumer.poll(WAIT_S)
    assert refused.value.code in (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with Producer(options(node, "mallory", transactional_id=TRANSACTION)) as producer, pytest.raises(KafkaError) as no:
        producer.transaction.init()
    assert no.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    with pytest.raises(KafkaError) as unsent:
        produce(node, "mallory", b"x")
    assert unsent.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    theirs = ConfluentProducer(confluent_options(node, "mallory", transactional_id=TRANSACTION))
    with pytest.raises(KafkaException) as librdkafkas:
        theirs.init_transactions(WAIT_S)
    assert librdkafkas.value.args[0].code() == ConfluentError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
