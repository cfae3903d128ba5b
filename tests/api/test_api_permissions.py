"""Every API of both tables, asked by somebody who may do nothing: all refuse. And what a right opens is no more than that right."""

import asyncio
from types import SimpleNamespace

import pytest
from tests.security.plain_logins import login, server_settings

from headrace.api.table import NOTHING
from headrace.base.errors import ErrorCode
from headrace.base.ids import METADATA_TOPIC_ID
from headrace.broker.forwarding import encode_principal
from headrace.client.connection import Connection, Disconnected
from headrace.client.frames import encode_request
from headrace.protocol.apis import APIS, ApiKey
from headrace.protocol.messages import produce as produce_messages
from headrace.records.builder import BatchBuilder
from headrace.security.principals import Principal
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

TOPIC = "orders"
SETTINGS = {
    "listeners": f"PLAINTEXT://{LOOPBACK}:0,CONTROLLER://{LOOPBACK}:0",
    "controller.listener.names": "CONTROLLER",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}
REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
# As in Kafka: what must be answered before anybody is known, and what shows nothing but the brokers that a client needs to know.
OPEN = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
# … or what the asker is to measure of itself.
OPEN |= {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
BROKERS_ONLY = {ApiKey.DESCRIBE_CLUSTER}
SILENT = {(ApiKey.DESCRIBE_LOG_DIRS, 1)}  # too old to have a word for it: an empty answer
SILENT |= {(ApiKey.LIST_GROUPS, version) for version in range(6)}  # all that one may see
SILENT |= {(ApiKey.LIST_TRANSACTIONS, version) for version in range(3)}


def batch():
    builder = BatchBuilder()
    builder.append(0, None, b"x")
    return builder.build()


def of(key, /, **fields):
    return APIS[key].request(**fields)


def part(key, kind, /, **fields):
    return getattr(APIS[key].request, kind)(**fields)


def by_name_or_id(version, since, topic_id, id_field="topic_id", name_field="name"):
    return {id_field: topic_id} if version >= since else {name_field: TOPIC}


# One request of each API, which names an existing topic where it names any.
SAMPLES = {
    ApiKey.PRODUCE: lambda v, i: of(0, acks=-1, topic_data=[part(0, "TopicProduceData", **by_name_or_id(v, 13, i),
        partition_data=[produce_messages.ProduceRequest.PartitionProduceData(index=0, records=batch())])]),
    ApiKey.FETCH: lambda v, i: of(1, min_bytes=0, max_wait_ms=0, topics=[part(1, "FetchTopic",
        **by_name_or_id(v, 13, i, name_field="topic"), partitions=[part(1, "FetchPartition", partition_max_bytes=99)])]),
    ApiKey.LIST_OFFSETS: lambda v, i: of(2, topics=[part(2, "ListOffsetsTopic", name=TOPIC,
        partitions=[part(2, "ListOffsetsPartition", timestamp=-1)])]),
    ApiKey.METADATA: lambda v, i: of(3, topics=[part(3, "MetadataRequestTopic", name=TOPIC)]),
    ApiKey.OFFSET_COMMIT: lambda v, i: of(8, group_id="g", topics=[part(8, "OffsetCommitRequestTopic",
        **by_name_or_id(v, 10, i), partitions=[part(8, "OffsetCommitRequestPartition")])]),
    ApiKey.OFFSET_FETCH: lambda v, i: of(9, groups=[part(9, "OffsetFetchRequestGroup", group_id="g", topics=[])]) if v >= 8
        else of(9, group_id="g", topics=[part(9, "OffsetFetchRequestTopic", name=TOPIC, partition_indexes=[0])]),
    ApiKey.JOIN_GROUP: lambda v, i: of(11, group_id="g", session_timeout_ms=9999, protocol_type="consumer",
        protocols=[part(11, "JoinGroupRequestProtocol", name="range")]),
    ApiKey.HEARTBEAT: lambda v, i: of(12, group_id="g"),
    ApiKey.LEAVE_GROUP: lambda v, i: of(13, group_id="g"),
    ApiKey.SYNC_GROUP: lambda v, i: of(14, group_id="g"),
    ApiKey.DESCRIBE_GROUPS: lambda v, i: of(15, groups=["g"]),
    ApiKey.LIST_GROUPS: lambda v, i: of(16),
    ApiKey.DELETE_GROUPS: lambda v, i: of(42, groups_names=["g"]),
    ApiKey.OFFSET_DELETE: lambda v, i: of(47, group_id="g"),
    ApiKey.FIND_COORDINATOR: lambda v, i: of(10, **({"coordinator_keys": ["g"]} if v >= 4 else {"key": "g"})),
    ApiKey.CREATE_TOPICS: lambda v, i: of(19, topics=[part(19, "CreatableTopic", name="n", num_partitions=1,
        replication_factor=1)]),
    ApiKey.DELETE_TOPICS: lambda v, i: of(20, timeout_ms=9, **({"topics": [part(20, "DeleteTopicState", name=TOPIC)]}
        if v >= 6 else {"topic_names": [TOPIC]})),
    ApiKey.DELETE_RECORDS: lambda v, i: of(21, topics=[part(21, "DeleteRecordsTopic", name=TOPIC,
        partitions=[part(21, "DeleteRecordsPartition")])]),
    ApiKey.INIT_PRODUCER_ID: lambda v, i: of(22, transactional_id=None),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda v, i: of(23, topics=[part(23, "OffsetForLeaderTopic", topic=TOPIC,
        partitions=[part(23, "OffsetForLeaderPartition")])]),
    ApiKey.DESCRIBE_ACLS: lambda v, i: of(29, resource_type_filter=1, pattern_type_filter=1 if v else 3, operation=1,
        permission_type=1),
    ApiKey.CREATE_ACLS: lambda v, i: of(30, creations=[part(30, "AclCreation", resource_type=2, resource_name="*",
        principal="User:*", host="*", operation=2, permission_type=3)]),
    ApiKey.DELETE_ACLS: lambda v, i: of(31, filters=[part(31, "DeleteAclsFilter", resource_type_filter=1, operation=1,
        permission_type=1)]),
    ApiKey.DESCRIBE_CONFIGS: lambda v, i: of(32, resources=[part(32, "DescribeConfigsResource", resource_type=kind,
        resource_name=name, configuration_keys=None) for kind, name in ((2, TOPIC), (4, "1"))]),
    ApiKey.ALTER_CONFIGS: lambda v, i: of(33, resources=[part(33, "AlterConfigsResource", resource_type=kind,
        resource_name=name) for kind, name in ((2, TOPIC), (4, "1"))]),
    ApiKey.ALTER_REPLICA_LOG_DIRS: lambda v, i: of(34, dirs=[part(34, "AlterReplicaLogDir", path="/",
        topics=[part(34, "AlterReplicaLogDirTopic", name=TOPIC, partitions=[0])])]),
    ApiKey.DESCRIBE_LOG_DIRS: lambda v, i: of(35, topics=None),
    ApiKey.CREATE_PARTITIONS: lambda v, i: of(37, topics=[part(37, "CreatePartitionsTopic", name=TOPIC, count=9)]),
    ApiKey.ELECT_LEADERS: lambda v, i: of(43, topic_partitions=[part(43, "TopicPartitions", topic=TOPIC, partitions=[0])]),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda v, i: of(44, resources=[part(44, "AlterConfigsResource", resource_type=kind,
        resource_name=name) for kind, name in ((2, TOPIC), (4, "1"), (8, "1"))]),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda v, i: of(45, topics=[]),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda v, i: of(46, topics=None),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda v, i: of(48),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda v, i: of(50, users=None),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda v, i: of(51, deletions=[part(51, "ScramCredentialDeletion", name="u",
        mechanism=1)]),
    ApiKey.DESCRIBE_QUORUM: lambda v, i: of(55, topics=[]),
    ApiKey.UPDATE_FEATURES: lambda v, i: of(57),
    ApiKey.ENVELOPE: lambda v, i: of(58, request_data=forged(), client_host_address=bytes([127, 0, 0, 1]),
        request_principal=encode_principal(Principal("User", "admin"))),
    ApiKey.FETCH_SNAPSHOT: lambda v, i: of(59, topics=[]),
    ApiKey.DESCRIBE_PRODUCERS: lambda v, i: of(61, topics=[part(61, "TopicRequest", name=TOPIC, partition_indexes=[0])]),
    ApiKey.BROKER_REGISTRATION: lambda v, i: of(62, broker_id=7),
    ApiKey.BROKER_HEARTBEAT: lambda v, i: of(63, broker_id=1),
    ApiKey.UNREGISTER_BROKER: lambda v, i: of(64, broker_id=1),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda v, i: of(68, group_id="g", member_id="m"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda v, i: of(69, group_ids=["g"]),
    ApiKey.ALLOCATE_PRODUCER_IDS: lambda v, i: of(67, broker_id=1),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: lambda v, i: of(73, broker_id=1),
    ApiKey.LIST_CONFIG_RESOURCES: lambda v, i: of(74),
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda v, i: of(24, transactions=[part(24, "AddPartitionsToTxnTransaction",
        transactional_id="t", topics=[part(24, "AddPartitionsToTxnTopic", name=TOPIC, partitions=[0])])]) if v >= 4
        else of(24, v3_and_below_transactional_id="t",
        v3_and_below_topics=[part(24, "AddPartitionsToTxnTopic", name=TOPIC, partitions=[0])]),
    ApiKey.ADD_OFFSETS_TO_TXN: lambda v, i: of(25, transactional_id="t", group_id="g"),
    ApiKey.END_TXN: lambda v, i: of(26, transactional_id="t"),
    ApiKey.WRITE_TXN_MARKERS: lambda v, i: of(27, markers=[part(27, "WritableTxnMarker", producer_id=1,
        topics=[part(27, "WritableTxnMarkerTopic", name=TOPIC, partition_indexes=[0])])]),
    ApiKey.TXN_OFFSET_COMMIT: lambda v, i: of(28, transactional_id="t", group_id="g", topics=[part(28,
        "TxnOffsetCommitRequestTopic", name=TOPIC, partitions=[part(28, "TxnOffsetCommitRequestPartition")])]),
    ApiKey.DESCRIBE_TRANSACTIONS: lambda v, i: of(65, transactional_ids=["t"]),
    ApiKey.LIST_TRANSACTIONS: lambda v, i: of(66),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda v, i: of(75, topics=[part(75, "TopicRequest", name=TOPIC)], cursor=None),
}  # fmt: skip


def forged():
    """What a stranger would like a controller to believe that a broker sent."""
    request = SAMPLES[ApiKey.CREATE_ACLS](3, None)
    return b"".join(encode_request(request, 3, 1, "forger"))[4:]


def codes_in(value):
    if hasattr(value, "__struct_fields__"):
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            if name.endswith("error_code"):
                yield inner
            yield from codes_in(inner)
    elif isinstance(value, list):
        for one in value:
            yield from codes_in(one)


@pytest.fixture(scope="module")
def closed():
    """A node on which nobody but the node itself may do anything, with one topic from before."""
    with EmbeddedNode({"listeners": SETTINGS["listeners"], "controller.listener.names": "CONTROLLER"}) as first:

        async def make():
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


def tables(closed):
    node = closed.node.node
    return {
        "PLAINTEXT": node.broker.dispatcher._services,
        "CONTROLLER": node.controller.dispatcher._services,
    }


@pytest.mark.parametrize("listener", ["PLAINTEXT", "CONTROLLER"])
def test_every_api_refuses_whoever_may_do_nothing(closed, listener):
    async def run():
        port = closed.node.node.ports[listener]
        for key, service in tables(closed)[listener].items():
            if key in OPEN:
                assert service.need == NOTHING
                continue
            assert service.need != NOTHING, f"{key.name} must say what it needs"
            for version in sorted(set(service.versions)):
                connection = await Connection.connect(LOOPBACK, port)
                if key in BROKERS_ONLY:
                    request = of(key, include_cluster_authorized_operations=True)
                    if listener == "CONTROLLER":
                        request.endpoint_type = 2 if version else 1
                    answer = await connection.request(request, version=version)
                    assert answer.error_code or answer.cluster_authorized_operations == 0
                    continue
                topic_id = METADATA_TOPIC_ID if listener == "CONTROLLER" else closed.topic_id
                answer = await connection.request(SAMPLES[key](version, topic_id), version=version)
                codes = list(codes_in(answer))
                assert codes and set(codes) <= REFUSALS | {ErrorCode.NONE}, (key.name, version, answer)
                assert any(code in REFUSALS for code in codes) or (key, version) in SILENT, (key.name, version, answer)
                # An answer as a whole may be fine, but then nothing in it is.
                assert not answer_gives_anything(answer), (key.name, version, answer)
                await connection.close()

    asyncio.run(run())


def answer_gives_anything(answer):
    """Anything that stands beside an error code of NONE, below the top."""

    def inner(value):
        if isinstance(value, list):
            return any(inner(one) for one in value)
        if not hasattr(value, "__struct_fields__"):
            return False
        codes = [getattr(value, name) for name in value.__struct_fields__ if name == "error_code"]
        if codes == [ErrorCode.NONE]:
            return True
        return any(inner(getattr(value, name)) for name in value.__struct_fields__)

    own = getattr(answer, "error_code", None)
    if own:
        return False
    return any(inner(getattr(answer, name)) for name in answer.__struct_fields__ if name != "brokers")


def test_all_topics_means_all_that_one_may_see(closed):
    async def run():
        connection = await Connection.connect(LOOPBACK, closed.node.port)
        answer = await connection.request(of(3, topics=None), version=12)
        assert answer.topics == [] and answer.brokers
        by_id = await connection.request(
            of(3, topics=[part(3, "MetadataRequestTopic", name=None, topic_id=closed.topic_id)]), version=12
        )
        assert (by_id.topics[0].error_code, by_id.topics[0].name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        await connection.close()

    asyncio.run(run())


def test_an_envelope_on_a_clients_door_is_not_even_opened(closed):
    async def run():
        connection = await Connection.connect(LOOPBACK, closed.node.port)
        with pytest.raises(Disconnected):
            await connection.request(SAMPLES[ApiKey.ENVELOPE](0, None), version=0)

    asyncio.run(run())
    assert not closed.node.node.broker.image.acls


def test_an_envelope_may_carry_only_what_brokers_forward():
    """Even from one who may: otherwise a broker could be made to speak for the cluster in a client's name."""
    with EmbeddedNode(server_settings()) as node:

        async def run():
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


def test_the_controllers_listener_asks_for_a_login_before_anything_else():
    """Every API of its table, by somebody who did not log in: the connection ends, nothing is answered but ApiVersions."""
    with EmbeddedNode(server_settings()) as node:

        async def run():
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
