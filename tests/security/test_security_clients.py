"""Real clients on every listener: TLS with and without a certificate, SCRAM and PLAIN over TLS, ACLs that allow and deny."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.security.pem_files import Authority, needs_openssl

from headrace.testing.cluster import LOOPBACK, EmbeddedNode

pytestmark = [
    needs_openssl,
    pytest.mark.clients,
    # kafka-python loads its schemas with a function that Python 3.11 deprecates.
    pytest.mark.filterwarnings(r"ignore:\w+ is deprecated. Use files\(\) instead:DeprecationWarning"),
]
WAIT_S = 20
QUIET = 0  # keeps librdkafka from logging expected errors to stderr
GROUP = "asked-for-by-every-consumer"
USERS = {"scram-256": "SCRAM-SHA-256", "scram-512": "SCRAM-SHA-512", "bob": "PLAIN"}
PASSWORD = 's,e=c"ret'
ALICE = "User:CN=alice,O=Example"


class SecuredNode:
    def __init__(self, node: EmbeddedNode, authority: Authority, alice: tuple[Path, Path, Path]) -> None:
        self.node, self.authority, self.alice = node, authority, alice

    def at(self, listener: str) -> str:
        return f"{LOOPBACK}:{self.node.node.ports[listener]}"

    def ssl(self, identity: tuple[Path, Path, Path] | None = None) -> dict[str, Any]:
        given: dict[str, Any] = {
            "bootstrap.servers": self.at("SSL"),
            "security.protocol": "SSL",
            "log_level": QUIET,
            "ssl.ca.location": str(self.authority.certificate),
        }
        if identity is not None:
            given |= {"ssl.key.location": str(identity[0]), "ssl.certificate.location": str(identity[1])}
        return given

    def sasl(self, user: str, password: str = PASSWORD, mechanism: str | None = None) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.at("SASL_SSL"),
            "security.protocol": "SASL_SSL",
            "log_level": QUIET,
            "sasl.mechanism": mechanism or USERS.get(user, "PLAIN"),
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.authority.certificate),
        }

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self.sasl("admin"))


def wait(futures: Any) -> dict[Any, Any]:
    return {key: future.result(WAIT_S) for key, future in futures.items()}


def create_acl(
    secured_node: SecuredNode,
    principal: str,
    operation: AclOperation,
    name: str,
    kind: ResourceType = ResourceType.TOPIC,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> None:
    binding = AclBinding(kind, name, pattern, principal, "*", operation, permission)
    wait(secured_node.admin.create_acls([binding]))


@pytest.fixture(scope="module")
def secured_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    directory = tmp_path_factory.mktemp("pem")
    authority = Authority(directory)
    _, _, store = authority.issue("server", "/CN=localhost")
    escaped = PASSWORD.replace('"', '\\"')
    settings = {
        "listeners": ",".join(f"{name}://{LOOPBACK}:0" for name in ("PLAINTEXT", "SSL", "SASL_SSL")),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "ssl.client.auth": "requested",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required"
            f' user_admin="{escaped}" user_bob="{escaped}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    with EmbeddedNode(settings) as node:
        secured_node = SecuredNode(node, authority, authority.issue("alice", "/O=Example/CN=alice"))
        for name, mechanism in (
            ("scram-256", ScramMechanism.SCRAM_SHA_256),
            ("scram-512", ScramMechanism.SCRAM_SHA_512),
        ):
            change = UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            wait(secured_node.admin.alter_user_scram_credentials([change]))
        create_acl(secured_node, "User:*", AclOperation.DESCRIBE, GROUP, ResourceType.GROUP)
        yield secured_node
        del secured_node.admin  # otherwise it would keep looking for the stopped node


def new_topic(secured_node: SecuredNode, name: str) -> str:
    wait(secured_node.admin.create_topics([NewTopic(name, 1, 1)]))
    return name


def exchange(config: Mapping[str, Any], topic: str, value: bytes) -> bytes:
    """Write one record and read it back; raise KafkaException if either is refused."""
    failed: list[KafkaError | None] = []
    producer = Producer({**config, "message.timeout.ms": WAIT_S * 1000})
    producer.produce(topic, value, on_delivery=lambda error, message: failed.append(error))
    producer.flush(WAIT_S)
    if failed[0] is not None:
        raise KafkaException(failed[0])
    consumer = Consumer({**config, "group.id": GROUP, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(WAIT_S)
        assert message is not None, "nothing came"
        if message.error() is not None:
            raise KafkaException(message.error())
        return message.value()
    finally:
        consumer.close()


@pytest.mark.parametrize("user", list(USERS))
def test_librdkafka_produces_and_consumes_over_sasl_and_tls(secured_node: SecuredNode, user: str) -> None:
    topic = new_topic(secured_node, f"sasl-{user}")
    for operation in (AclOperation.READ, AclOperation.WRITE):
        create_acl(secured_node, f"User:{user}", operation, topic)
    assert exchange(secured_node.sasl(user), topic, user.encode()) == user.encode()


def test_librdkafka_authenticates_with_a_certificate(secured_node: SecuredNode) -> None:
    topic = new_topic(secured_node, "mutual")
    create_acl(secured_node, ALICE, AclOperation.ALL, topic)
    assert exchange(secured_node.ssl(secured_node.alice), topic, b"alice") == b"alice"
    with pytest.raises(KafkaException) as refused:
        exchange(secured_node.ssl(), topic, b"anonymous")
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def client_context(secured_node: SecuredNode, identity: tuple[Path, Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(secured_node.authority.certificate))
    if identity is not None:
        context.load_cert_chain(str(identity[1]), str(identity[0]))
    return context


@pytest.mark.parametrize("user", list(USERS))
def test_aiokafka_produces_and_consumes_over_sasl_and_tls(secured_node: SecuredNode, user: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka import TopicPartition as Partition

    topic = new_topic(secured_node, f"aiokafka-{user}")
    create_acl(secured_node, f"User:{user}", AclOperation.ALL, topic)
    config = {
        "bootstrap_servers": secured_node.at("SASL_SSL"), "security_protocol": "SASL_SSL", "sasl_mechanism": USERS[user],
        "sasl_plain_username": user, "sasl_plain_password": PASSWORD, "ssl_context": client_context(secured_node),
    }  # fmt: skip

    async def run() -> bytes:
        async with AIOKafkaProducer(**config) as producer:
            await producer.send_and_wait(topic, b"value")
        async with AIOKafkaConsumer(**config, auto_offset_reset="earliest") as consumer:
            consumer.assign([Partition(topic, 0)])
            return (await asyncio.wait_for(consumer.getone(), WAIT_S)).value

    assert asyncio.run(run()) == b"value"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", None])
def test_kafka_python_authenticates_by_sasl_or_certificate(secured_node: SecuredNode, mechanism: str | None) -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as Partition

    if mechanism is None:
        principal = ALICE
        config = {
            "bootstrap_servers": secured_node.at("SSL"),
            "security_protocol": "SSL",
            "ssl_context": client_context(secured_node, secured_node.alice),
        }
    else:
        user = f"scram-{mechanism[-3:]}"
        principal = f"User:{user}"
        config = {
            "bootstrap_servers": secured_node.at("SASL_SSL"), "security_protocol": "SASL_SSL", "sasl_mechanism": mechanism,
            "sasl_plain_username": user, "sasl_plain_password": PASSWORD, "ssl_context": client_context(secured_node),
        }  # fmt: skip
    topic = new_topic(secured_node, f"kafka-python-{mechanism}")
    create_acl(secured_node, principal, AclOperation.ALL, topic)
    producer = KafkaProducer(**config)
    producer.send(topic, b"value").get(WAIT_S)
    producer.close()
    consumer = KafkaConsumer(**config, auto_offset_reset="earliest", consumer_timeout_ms=WAIT_S * 1000)
    consumer.assign([Partition(topic, 0)])
    assert next(consumer).value == b"value"
    consumer.close()


@pytest.mark.parametrize(
    ("user", "password", "mechanism"),
    [("scram-256", "wrong", None), ("nobody", PASSWORD, "SCRAM-SHA-256"), ("bob", "wrong", None),
     ("scram-256", PASSWORD, "SCRAM-SHA-512")],
)  # fmt: skip
def test_wrong_credentials_fail_fast(
    secured_node: SecuredNode, user: str, password: str, mechanism: str | None
) -> None:
    errors: list[KafkaError] = []
    producer = Producer({**secured_node.sasl(user, password, mechanism), "error_cb": errors.append})
    while not errors:
        producer.poll(0.05)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "invalid" in str(errors[0]).lower()


def test_topics_without_describe_permission_are_hidden(secured_node: SecuredNode) -> None:
    new_topic(secured_node, "seen")
    new_topic(secured_node, "hidden")
    create_acl(secured_node, "User:bob", AclOperation.DESCRIBE, "seen")
    bob = AdminClient(secured_node.sasl("bob"))
    assert "seen" in bob.list_topics(timeout=WAIT_S).topics
    assert "hidden" not in bob.list_topics(timeout=WAIT_S).topics
    for name in ("hidden", "never-made"):  # requested by name, both look the same to bob
        (found,) = bob.list_topics(name, timeout=WAIT_S).topics.values()
        assert found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_deny_overrides_allow_and_prefixed_acls_cover_new_topics(secured_node: SecuredNode) -> None:
    create_acl(secured_node, "User:bob", AclOperation.ALL, "team-", pattern=ResourcePatternType.PREFIXED)
    create_acl(secured_node, "User:bob", AclOperation.WRITE, "team-secret", permission=AclPermissionType.DENY)
    bob = AdminClient(secured_node.sasl("bob"))
    wait(bob.create_topics([NewTopic("team-a", 1, 1), NewTopic("team-secret", 1, 1)]))
    assert exchange(secured_node.sasl("bob"), "team-a", b"x") == b"x"
    with pytest.raises(KafkaException) as refused:
        exchange(secured_node.sasl("bob"), "team-secret", b"x")
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    for name in ("Team-a", "teams", "other"):
        with pytest.raises(KafkaException) as refused:
            wait(bob.create_topics([NewTopic(name, 1, 1)]))
        assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_changing_acls_and_users_requires_alter_on_the_cluster(secured_node: SecuredNode) -> None:
    bob = AdminClient(secured_node.sasl("bob"))
    binding = AclBinding(
        ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, "User:bob", "*", AclOperation.ALL, AclPermissionType.ALLOW
    )
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    change = UserScramCredentialUpsertion("bob", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"x")
    attempts: list[Callable[[], object]] = [
        lambda: wait(bob.create_acls([binding])),
        lambda: wait(bob.delete_acls([everything])),
        lambda: wait(bob.alter_user_scram_credentials([change])),
    ]
    for attempt in attempts:
        with pytest.raises(KafkaException) as refused:
            attempt()
        assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert bob.describe_acls(everything).result(WAIT_S) == [], (
        "librdkafka does not pass the error on, but nothing is shown"
    )


def test_acls_are_listed_and_removed(secured_node: SecuredNode) -> None:
    create_acl(secured_node, "User:carol", AclOperation.READ, "listed")
    admin = secured_node.admin
    carols = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, "User:carol", None, AclOperation.ANY, AclPermissionType.ANY
    )
    (found,) = admin.describe_acls(carols).result(WAIT_S)
    assert (found.name, found.operation, found.host) == ("listed", AclOperation.READ, "*")
    (removed,) = wait(admin.delete_acls([carols])).values()
    assert [acl.name for acl in removed] == ["listed"]
    assert admin.describe_acls(carols).result(WAIT_S) == []


def test_users_are_described_without_their_secrets(secured_node: SecuredNode) -> None:
    (info,) = wait(secured_node.admin.describe_user_scram_credentials(["scram-512"]))[
        "scram-512"
    ].scram_credential_infos
    assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_512, 4096)
    with pytest.raises(KafkaException) as unknown:
        wait(secured_node.admin.describe_user_scram_credentials(["nobody"]))
    assert unknown.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND
