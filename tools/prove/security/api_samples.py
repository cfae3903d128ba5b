"""One request of every API from a user without permissions, and how to recognize a refusal in the response.

The list of APIs is not here: callers take it from the table or from ApiVersions, and an API without a sample is a
failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.base.errors import ErrorCode
from headrace.broker.channels.forwarding import encode_principal
from headrace.client.wire.connection import Connection
from headrace.client.wire.frames import encode_request
from headrace.protocol.apis import APIS, ApiKey
from headrace.protocol.messages import produce as produce_messages
from headrace.records.builder import BatchBuilder
from headrace.security.principals import Principal

TOPIC = "orders"
REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
# APIs that Kafka leaves open to every connected client, with the reason.
OPEN = {
    ApiKey.API_VERSIONS: "clients send it before they log in; the response contains only supported versions",
    ApiKey.SASL_HANDSHAKE: "part of the login",
    ApiKey.SASL_AUTHENTICATE: "part of the login",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "a client requests which of its own metrics to send",
    ApiKey.PUSH_TELEMETRY: "a client sends its own metrics",
}
# APIs whose response has no error but contains only the brokers, which every client must know to reach a topic.
BROKERS_ONLY = {ApiKey.DESCRIBE_CLUSTER}
# APIs and versions whose refusal is an empty response without an error: lists, and a version too old for an error code.
EMPTY = {(ApiKey.DESCRIBE_LOG_DIRS, 1)}
EMPTY |= {(ApiKey.LIST_GROUPS, version) for version in range(6)}
EMPTY |= {(ApiKey.LIST_TRANSACTIONS, version) for version in range(3)}


def batch() -> bytes:
    """Return a batch with one record."""
    builder = BatchBuilder()
    builder.append(0, None, b"x")
    return bytes(builder.build())


def of(key: int, /, **fields: Any) -> Any:
    """Return a request of the API with these fields."""
    return APIS[key].request(**fields)


def part(key: int, kind: str, /, **fields: Any) -> Any:
    """Return a nested structure of the API's request."""
    return getattr(APIS[key].request, kind)(**fields)


def by_name_or_id(
    version: int, since: int, topic_id: Any, id_field: str = "topic_id", name_field: str = "name"
) -> dict[str, Any]:
    return {id_field: topic_id} if version >= since else {name_field: TOPIC}


# One request of each API. Those with a topic name an existing one.
SAMPLES: dict[ApiKey, Callable[[int, Any], Any]] = {
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
    ApiKey.VOTE: lambda v, i: of(52, topics=[]),
    ApiKey.BEGIN_QUORUM_EPOCH: lambda v, i: of(53, topics=[]),
    ApiKey.END_QUORUM_EPOCH: lambda v, i: of(54, topics=[]),
    ApiKey.DESCRIBE_QUORUM: lambda v, i: of(55, topics=[]),
    ApiKey.UPDATE_FEATURES: lambda v, i: of(57),
    ApiKey.ENVELOPE: lambda v, i: of(58, request_data=forged(), client_host_address=bytes([127, 0, 0, 1]),
        request_principal=encode_principal(Principal("User", "admin"))),
    ApiKey.FETCH_SNAPSHOT: lambda v, i: of(59, topics=[]),
    ApiKey.DESCRIBE_PRODUCERS: lambda v, i: of(61, topics=[part(61, "TopicRequest", name=TOPIC, partition_indexes=[0])]),
    ApiKey.BROKER_REGISTRATION: lambda v, i: of(62, broker_id=7),
    ApiKey.BROKER_HEARTBEAT: lambda v, i: of(63, broker_id=1),
    ApiKey.UNREGISTER_BROKER: lambda v, i: of(64, broker_id=1),
    ApiKey.ADD_RAFT_VOTER: lambda v, i: of(80, cluster_id=None, voter_id=9),
    ApiKey.REMOVE_RAFT_VOTER: lambda v, i: of(81, cluster_id=None, voter_id=1),
    ApiKey.UPDATE_RAFT_VOTER: lambda v, i: of(82, cluster_id=None, voter_id=1),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda v, i: of(68, group_id="g", member_id="m"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda v, i: of(69, group_ids=["g"]),
    ApiKey.ALLOCATE_PRODUCER_IDS: lambda v, i: of(67, broker_id=1),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: lambda v, i: of(73, broker_id=1),
    ApiKey.ALTER_PARTITION: lambda v, i: of(56, broker_id=1),
    ApiKey.CONTROLLER_REGISTRATION: lambda v, i: of(70, controller_id=1),
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


def forged() -> bytes:
    """Return a request that an attacker would send to the controller as if a broker had forwarded it."""
    request = SAMPLES[ApiKey.CREATE_ACLS](3, None)
    return b"".join(encode_request(request, 3, 1, "forger"))[4:]


def codes_in(value: Any) -> Iterator[int]:
    """Yield all error codes in a response."""
    if hasattr(value, "__struct_fields__"):
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            if name.endswith("error_code"):
                yield inner
            yield from codes_in(inner)
    elif isinstance(value, list):
        for one in value:
            yield from codes_in(one)


def discloses_anything(response: Any) -> bool:
    """Return whether anything below the top level has the error code NONE."""

    def inner(value: Any) -> bool:
        if isinstance(value, list):
            return any(inner(one) for one in value)
        if not hasattr(value, "__struct_fields__"):
            return False
        codes = [getattr(value, name) for name in value.__struct_fields__ if name == "error_code"]
        if codes == [ErrorCode.NONE]:
            return True
        return any(inner(getattr(value, name)) for name in value.__struct_fields__)

    own = getattr(response, "error_code", None)
    if own:
        return False
    return any(inner(getattr(response, name)) for name in response.__struct_fields__ if name != "brokers")


async def check_refusal(connection: Connection, key: ApiKey, version: int, topic_id: Any, *, controller: bool) -> None:
    """Send the sample of one API. Raise AssertionError unless the response is a refusal that discloses nothing."""
    if key in BROKERS_ONLY:
        request = of(key, include_cluster_authorized_operations=True)
        if controller:
            request.endpoint_type = 2 if version else 1
        response = await connection.request(request, version=version)
        assert response.error_code or response.cluster_authorized_operations == 0, (key.name, version, response)
        return
    response = await connection.request(SAMPLES[key](version, topic_id), version=version)
    codes = list(codes_in(response))
    assert codes and set(codes) <= REFUSALS | {ErrorCode.NONE}, (key.name, version, response)
    assert any(code in REFUSALS for code in codes) or (key, version) in EMPTY, (key.name, version, response)
    # The top level may succeed, but then nothing below it may.
    assert not discloses_anything(response), (key.name, version, response)
