"""The secured cluster of docs/security.md: an ordinary user works through a failover, and strangers may not act as nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from tests.security.pem_files import needs_openssl
from tools.prove.security.api_samples import REFUSALS, SAMPLES, codes_in
from tools.prove.security.secured_cluster import BROKERS, CLIENTS, CONTROLLER, NODE_IDS, SecuredCluster
from tools.prove.security.secured_files import SecuredFiles

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC_ID
from headrace.client import Admin, Consumer, Producer
from headrace.client.wire.connection import Connection, Disconnected, NoResponse
from headrace.client.wire.options import CLIENT_OPTIONS
from headrace.client.wire.security import ClientSecurity, make_security
from headrace.protocol.apis import APIS, ApiKey
from headrace.protocol.messages.fetch import FetchRequest

pytestmark = needs_openssl
WAIT_S = 60
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
BETWEEN_CONTROLLERS = [
    ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.FETCH_SNAPSHOT, ApiKey.FETCH, ApiKey.ENVELOPE,
    ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT, ApiKey.ALTER_PARTITION, ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    ApiKey.ALLOCATE_PRODUCER_IDS, ApiKey.CONTROLLER_REGISTRATION,
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    """Three nodes, with a user `mallory` who can log in to the listeners of nodes but has no permissions."""
    files = SecuredFiles(tmp_path_factory.mktemp("secured-cluster"))
    with SecuredCluster(files, 'user_mallory="mallory-secret"') as made:
        files.run("users")
        yield made


def security_of(options: dict[str, str]) -> ClientSecurity:
    values: dict[str, Any] = {name: option.default for name, option in CLIENT_OPTIONS.items()}
    return make_security({**values, **{name: value for name, value in options.items() if name in values}}, Random(3))


def mallory(cluster: SecuredCluster) -> ClientSecurity:
    login = f'{PLAIN} required username="mallory" password="mallory-secret";'
    return security_of({**cluster.client("alice"), "sasl.mechanism": "PLAIN", "sasl.jaas.config": login})


def test_an_ordinary_user_continues_through_the_loss_of_a_leader(cluster: SecuredCluster) -> None:
    alice = cluster.client("alice")
    with Admin(cluster.client("admin")) as admin:
        leader = admin.describe_topics(["orders"])["orders"].partitions[0].leader
    assert leader is not None
    with Producer({**alice, "transactional.id": "billing"}) as producer:
        producer.transaction.init()
        for number in range(10):
            if number == 5:
                cluster.nodes[leader].kill()
            producer.transaction.begin()
            producer.send("orders", b"%d" % number).result(WAIT_S)
            producer.transaction.commit()
    given = {**alice, "group.id": "billing", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    with Consumer(given) as consumer:
        consumer.subscribe(["orders"])
        read: list[bytes | None] = []
        while len(read) < 10:
            records = consumer.poll(WAIT_S)
            assert records, f"only {len(read)} records arrived"
            read += [record.value for record in records]
        consumer.commit()
    assert read == [b"%d" % number for number in range(10)]
    cluster.nodes[leader].start()


def test_a_user_without_permissions_is_refused_by_name(cluster: SecuredCluster) -> None:
    with Admin(cluster.client("alice")) as admin, pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
        admin.describe_acls()


@pytest.mark.parametrize("listener", [CLIENTS, BROKERS, CONTROLLER])
def test_peers_without_a_login_are_disconnected_on_every_listener(cluster: SecuredCluster, listener: int) -> None:
    async def request(port: int, protocol: str) -> None:
        security = security_of({**cluster.client("alice"), "security.protocol": protocol})
        connection = await Connection.connect("localhost", port, timeout_s=WAIT_S, security=security)
        try:
            await connection.request(SAMPLES[ApiKey.VOTE](2, None) if listener == CONTROLLER else FetchRequest())
        finally:
            await connection.close()

    for node_id in NODE_IDS:
        for protocol in ("PLAINTEXT", "SSL"):
            with pytest.raises((Disconnected, NoResponse)):
                asyncio.run(asyncio.wait_for(request(cluster.ports[node_id][listener], protocol), WAIT_S))


def test_a_login_for_clients_is_not_valid_between_nodes(cluster: SecuredCluster) -> None:
    async def connect(port: int) -> None:
        await Connection.connect("localhost", port, timeout_s=WAIT_S, security=security_of(cluster.client("alice")))

    for listener in (BROKERS, CONTROLLER):
        with pytest.raises((KafkaError, Disconnected)):
            asyncio.run(connect(cluster.ports[1][listener]))


@pytest.mark.parametrize("key", BETWEEN_CONTROLLERS, ids=lambda key: key.name.lower())
def test_an_unauthorized_peer_may_not_act_as_a_controller_or_broker(cluster: SecuredCluster, key: ApiKey) -> None:
    async def send(port: int) -> set[int]:
        connection = await Connection.connect("localhost", port, timeout_s=WAIT_S, security=mallory(cluster))
        try:
            version = APIS[key].stable_version_max
            return set(codes_in(await connection.request(SAMPLES[key](version, METADATA_TOPIC_ID), version=version)))
        finally:
            await connection.close()

    for node_id in NODE_IDS:  # whether or not it is the active controller
        codes = asyncio.run(send(cluster.ports[node_id][CONTROLLER])) - {ErrorCode.NONE}
        assert codes == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


def test_an_unauthorized_peer_may_not_replicate_or_write_markers(cluster: SecuredCluster) -> None:
    with Admin(cluster.client("admin")) as admin:
        topic = admin.describe_topics(["orders"])["orders"]

    async def send(port: int) -> None:
        connection = await Connection.connect("localhost", port, timeout_s=WAIT_S, security=mallory(cluster))
        as_replica = FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=1, replica_epoch=-1),
            topics=[
                FetchRequest.FetchTopic(
                    topic_id=topic.id, partitions=[FetchRequest.FetchPartition(partition_max_bytes=99)]
                )
            ],
        )
        requests = {
            "Fetch": as_replica,
            **{key.name: SAMPLES[key](APIS[key].stable_version_max, topic.id) for key in (
                ApiKey.WRITE_TXN_MARKERS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.LIST_OFFSETS
            )},
        }  # fmt: skip
        for name, request in requests.items():
            codes = set(codes_in(await connection.request(request))) - {ErrorCode.NONE}
            assert codes and codes <= REFUSALS, (name, codes)
        await connection.close()

    for node_id in NODE_IDS:
        asyncio.run(send(cluster.ports[node_id][BROKERS]))


def test_the_nodes_of_a_secured_cluster_log_no_errors(cluster: SecuredCluster) -> None:
    for node in cluster.nodes.values():
        wrong = [line for line in node.log_text().splitlines() if "Traceback" in line or " ERROR " in line]
        assert not wrong, wrong[:3]
