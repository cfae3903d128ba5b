"""Every API of both tables refuses a caller without permissions, and each permission grants only what it names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.security.plain_logins import login, login_options, server_settings
from tools.prove.security.api_samples import OPEN, SAMPLES, TOPIC, check_refusal, forged, of, part

from headrace.api.permissions import NOTHING
from headrace.base.errors import ErrorCode
from headrace.base.ids import METADATA_TOPIC_ID
from headrace.broker.channels.forwarding import encode_principal
from headrace.client import Admin, NewTopic
from headrace.client.wire.connection import Connection, Disconnected
from headrace.client.wire.frames import encode_request
from headrace.protocol.apis import APIS, ApiKey
from headrace.security.acls import Acl, Pattern, Permission
from headrace.security.principals import Principal
from headrace.security.resources import Operation, Resource
from headrace.server.dispatch import Service
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

SETTINGS = {
    "listeners": f"PLAINTEXT://{LOOPBACK}:0,CONTROLLER://{LOOPBACK}:0",
    "controller.listener.names": "CONTROLLER",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}


@pytest.fixture(scope="module")
def restricted() -> Iterator[SimpleNamespace]:
    """Start a node on which only the node itself has permissions, with one topic that existed before."""
    with EmbeddedNode({"listeners": SETTINGS["listeners"], "controller.listener.names": "CONTROLLER"}) as first:

        async def make() -> bytes:
            connection = await Connection.connect(LOOPBACK, first.port)
            answer = await connection.request(
                of(19, topics=[part(19, "CreatableTopic", name=TOPIC, num_partitions=1, replication_factor=1)]),
                version=7,
            )
            await connection.close()
            return answer.topics[0].topic_id

        topic_id = asyncio.run(make())
        first.stop()
        with EmbeddedNode(SETTINGS, data_dir=first.data_dir) as node:
            yield SimpleNamespace(node=node, topic_id=topic_id)


def tables(restricted: SimpleNamespace) -> dict[str, dict[ApiKey, Service]]:
    node = restricted.node.node
    return {
        "PLAINTEXT": node.broker.dispatcher._services,
        "CONTROLLER": node.controller.dispatcher._services,
    }


@pytest.mark.parametrize("listener", ["PLAINTEXT", "CONTROLLER"])
def test_every_api_refuses_a_caller_without_permissions(restricted: SimpleNamespace, listener: str) -> None:
    async def run() -> None:
        port = restricted.node.node.ports[listener]
        for key, service in tables(restricted)[listener].items():
            if key in OPEN:
                assert service.need == NOTHING
                continue
            assert service.need != NOTHING, f"{key.name} must say what it needs"
            for version in sorted(set(service.versions)):
                connection = await Connection.connect(LOOPBACK, port)
                topic_id = METADATA_TOPIC_ID if listener == "CONTROLLER" else restricted.topic_id
                await check_refusal(connection, key, version, topic_id, controller=listener == "CONTROLLER")
                await connection.close()

    asyncio.run(run())


def test_metadata_omits_topics_the_caller_may_not_describe(restricted: SimpleNamespace) -> None:
    async def run() -> None:
        connection = await Connection.connect(LOOPBACK, restricted.node.port)
        answer = await connection.request(of(3, topics=None), version=12)
        assert answer.topics == [] and answer.brokers
        by_id = await connection.request(
            of(3, topics=[part(3, "MetadataRequestTopic", name=None, topic_id=restricted.topic_id)]), version=12
        )
        assert (by_id.topics[0].error_code, by_id.topics[0].name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        await connection.close()

    asyncio.run(run())


def test_an_envelope_on_a_client_listener_closes_the_connection(restricted: SimpleNamespace) -> None:
    async def run() -> None:
        connection = await Connection.connect(LOOPBACK, restricted.node.port)
        with pytest.raises(Disconnected):
            await connection.request(SAMPLES[ApiKey.ENVELOPE](0, None), version=0)

    asyncio.run(run())
    assert not restricted.node.node.broker.image.acls


def test_an_envelope_may_carry_only_forwardable_requests() -> None:
    """Refuse it even from a permitted sender: otherwise a broker could act for the cluster in a client's name."""
    with EmbeddedNode(server_settings()) as node:

        async def run() -> None:
            connection = await Connection.connect(LOOPBACK, node.node.ports["CONTROLLER"], security=login("admin"))
            for key in (ApiKey.ENVELOPE, ApiKey.BROKER_HEARTBEAT, ApiKey.FETCH):
                version = APIS[key].stable_version_max
                inner = b"".join(encode_request(SAMPLES[key](version, METADATA_TOPIC_ID), version, 1, "x"))[4:]
                envelope = of(
                    58,
                    request_data=inner,
                    client_host_address=bytes(4),
                    request_principal=encode_principal(Principal()),
                )
                answer = await connection.request(envelope, version=0)
                assert answer.error_code == ErrorCode.INVALID_REQUEST
            bob = of(
                58,
                request_data=forged(),
                client_host_address=bytes(4),
                request_principal=encode_principal(Principal("User", "bob")),
            )
            answer = await connection.request(bob, version=0)
            assert answer.error_code == ErrorCode.NONE, "the envelope is fine, what is in it is judged by bob's rights"
            assert not node.node.broker.image.acls
            await connection.close()

        asyncio.run(run())


def test_the_controller_listener_requires_authentication_before_any_request() -> None:
    """Send every API of its table without logging in: only ApiVersions is served, all others end the connection."""
    with EmbeddedNode(server_settings()) as node:

        async def run() -> None:
            port = node.node.ports["CONTROLLER"]
            for key, service in node.node.controller.dispatcher._services.items():
                if key in OPEN:
                    continue
                connection = await Connection.connect(LOOPBACK, port)
                with pytest.raises(Disconnected):
                    version = service.versions[1]
                    sample = SAMPLES[key](version, METADATA_TOPIC_ID) if key in SAMPLES else of(key)
                    await connection.request(sample, version=version)
            assert set(node.node.broker.image.brokers) == {1} and not node.node.broker.image.scram

        asyncio.run(run())


def test_full_topic_group_and_transaction_permissions_do_not_grant_cluster_actions() -> None:
    """Send every inter-broker and controller request as a user with all permissions that clients need."""
    with EmbeddedNode(server_settings("alice")) as node:
        with Admin({"bootstrap.servers": node.bootstrap, **login_options("admin")}) as admin:
            everything = (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
            admin.create_topics([NewTopic(TOPIC)])
            admin.create_acls(
                [
                    Acl(resource, "*", Pattern.LITERAL, "User:alice", "*", Operation.ALL, Permission.ALLOW)
                    for resource in everything
                ]
            )
        tables = {
            "SASL_PLAINTEXT": node.node.broker.dispatcher._services,
            "CONTROLLER": node.node.controller.dispatcher._services,
        }
        requested: set[tuple[str, ApiKey]] = set()

        async def run() -> None:
            for listener, table in tables.items():
                port = node.node.ports[listener]
                connection = await Connection.connect(LOOPBACK, port, security=login("alice"))
                for key, service in table.items():
                    if key is ApiKey.ADD_PARTITIONS_TO_TXN or service.need.operation is Operation.CLUSTER_ACTION:
                        version = service.versions[1]
                        await check_refusal(connection, key, version, METADATA_TOPIC_ID, controller=False)
                        requested.add((listener, key))
                await connection.close()
            topic_id = node.node.broker.image.topics[TOPIC].id
            connection = await Connection.connect(LOOPBACK, node.port, security=login("alice"))
            as_replica = SAMPLES[ApiKey.FETCH](18, topic_id)
            as_replica.replica_state.replica_id = 1
            answer = await connection.request(as_replica, version=18)
            assert answer.responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await connection.close()

        asyncio.run(run())
        controllers = {
            ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT, ApiKey.ENVELOPE, ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT,
            ApiKey.ALLOCATE_PRODUCER_IDS, ApiKey.ASSIGN_REPLICAS_TO_DIRS, ApiKey.ALTER_PARTITION,
            ApiKey.CONTROLLER_REGISTRATION, ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH,
            ApiKey.UPDATE_RAFT_VOTER,
        }  # fmt: skip
        brokers = {ApiKey.WRITE_TXN_MARKERS, ApiKey.ADD_PARTITIONS_TO_TXN}
        assert requested == {("CONTROLLER", key) for key in controllers} | {("SASL_PLAINTEXT", key) for key in brokers}
