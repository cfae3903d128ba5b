"""The API tables of a broker and a controller: keys, versions and permissions, and how they are joined."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headrace.api.permissions import NOTHING
from headrace.api.table import make_table
from headrace.protocol.apis import ApiKey
from headrace.security.resources import Need, Operation, Resource
from headrace.server.dispatch import Service
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

# By API: the lowest and the highest version, and the permission.
BROKER = {
    ApiKey.PRODUCE: (3, 13, Need(Resource.TOPIC, Operation.WRITE, per_entity=True)),
    ApiKey.FETCH: (4, 18, Need(Resource.TOPIC, Operation.READ, per_entity=True)),
    ApiKey.LIST_OFFSETS: (1, 11, Need(Resource.TOPIC, Operation.DESCRIBE, per_entity=True)),
    ApiKey.METADATA: (0, 13, Need(Resource.TOPIC, Operation.DESCRIBE, per_entity=True)),
    ApiKey.OFFSET_COMMIT: (2, 10, Need(Resource.GROUP, Operation.READ, per_entity=True)),
    ApiKey.OFFSET_FETCH: (1, 10, Need(Resource.GROUP, Operation.DESCRIBE, per_entity=True)),
    ApiKey.FIND_COORDINATOR: (0, 6, Need(Resource.GROUP, Operation.DESCRIBE, per_entity=True)),
    ApiKey.JOIN_GROUP: (0, 9, Need(Resource.GROUP, Operation.READ, per_entity=True)),
    ApiKey.HEARTBEAT: (0, 4, Need(Resource.GROUP, Operation.READ, per_entity=True)),
    ApiKey.LEAVE_GROUP: (0, 5, Need(Resource.GROUP, Operation.READ, per_entity=True)),
    ApiKey.SYNC_GROUP: (0, 5, Need(Resource.GROUP, Operation.READ, per_entity=True)),
    ApiKey.DESCRIBE_GROUPS: (0, 6, Need(Resource.GROUP, Operation.DESCRIBE, per_entity=True)),
    ApiKey.LIST_GROUPS: (0, 5, Need(Resource.GROUP, Operation.DESCRIBE, per_entity=True)),
    ApiKey.SASL_HANDSHAKE: (0, 1, Need(Resource.NONE, Operation.NONE)),
    ApiKey.API_VERSIONS: (0, 4, Need(Resource.NONE, Operation.NONE)),
    ApiKey.CREATE_TOPICS: (2, 7, Need(Resource.TOPIC, Operation.CREATE, per_entity=True)),
    ApiKey.DELETE_TOPICS: (1, 6, Need(Resource.TOPIC, Operation.DELETE, per_entity=True)),
    ApiKey.DELETE_RECORDS: (0, 2, Need(Resource.TOPIC, Operation.DELETE, per_entity=True)),
    ApiKey.INIT_PRODUCER_ID: (0, 5, Need(Resource.CLUSTER, Operation.IDEMPOTENT_WRITE, per_entity=True)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4, Need(Resource.TOPIC, Operation.DESCRIBE, per_entity=True)),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5, Need(Resource.TRANSACTIONAL_ID, Operation.WRITE, per_entity=True)),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4, Need(Resource.TRANSACTIONAL_ID, Operation.WRITE, per_entity=True)),
    ApiKey.END_TXN: (0, 5, Need(Resource.TRANSACTIONAL_ID, Operation.WRITE, per_entity=True)),
    ApiKey.WRITE_TXN_MARKERS: (1, 2, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION, per_entity=True)),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5, Need(Resource.TRANSACTIONAL_ID, Operation.WRITE, per_entity=True)),
    ApiKey.DESCRIBE_ACLS: (1, 3, Need(Resource.CLUSTER, Operation.DESCRIBE)),
    ApiKey.CREATE_ACLS: (1, 3, Need(Resource.CLUSTER, Operation.ALTER, per_entity=True)),
    ApiKey.DELETE_ACLS: (1, 3, Need(Resource.CLUSTER, Operation.ALTER, per_entity=True)),
    ApiKey.DESCRIBE_CONFIGS: (1, 4, Need(Resource.TOPIC, Operation.DESCRIBE_CONFIGS, per_entity=True)),
    ApiKey.ALTER_CONFIGS: (0, 2, Need(Resource.TOPIC, Operation.ALTER_CONFIGS, per_entity=True)),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2, Need(Resource.CLUSTER, Operation.ALTER)),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 5, Need(Resource.CLUSTER, Operation.DESCRIBE)),
    ApiKey.SASL_AUTHENTICATE: (0, 2, Need(Resource.NONE, Operation.NONE)),
    ApiKey.CREATE_PARTITIONS: (0, 3, Need(Resource.TOPIC, Operation.ALTER, per_entity=True)),
    ApiKey.DELETE_GROUPS: (0, 2, Need(Resource.GROUP, Operation.DELETE, per_entity=True)),
    ApiKey.ELECT_LEADERS: (0, 2, Need(Resource.CLUSTER, Operation.ALTER, per_entity=True)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1, Need(Resource.TOPIC, Operation.ALTER_CONFIGS, per_entity=True)),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1, Need(Resource.CLUSTER, Operation.ALTER, per_entity=True)),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0, Need(Resource.CLUSTER, Operation.DESCRIBE, per_entity=True)),
    ApiKey.OFFSET_DELETE: (0, 0, Need(Resource.GROUP, Operation.DELETE, per_entity=True)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1, Need(Resource.CLUSTER, Operation.DESCRIBE_CONFIGS)),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0, Need(Resource.CLUSTER, Operation.DESCRIBE)),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0, Need(Resource.CLUSTER, Operation.ALTER, per_entity=True)),
    ApiKey.DESCRIBE_QUORUM: (0, 2, Need(Resource.CLUSTER, Operation.DESCRIBE, per_entity=True)),
    ApiKey.UPDATE_FEATURES: (0, 2, Need(Resource.CLUSTER, Operation.ALTER, per_entity=True)),
    ApiKey.DESCRIBE_CLUSTER: (0, 2, Need(Resource.CLUSTER, Operation.DESCRIBE, per_entity=True)),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0, Need(Resource.TOPIC, Operation.READ, per_entity=True)),
    ApiKey.UNREGISTER_BROKER: (0, 0, Need(Resource.CLUSTER, Operation.ALTER, per_entity=True)),
    ApiKey.ADD_RAFT_VOTER: (0, 1, Need(Resource.CLUSTER, Operation.ALTER, per_entity=True)),
    ApiKey.REMOVE_RAFT_VOTER: (0, 0, Need(Resource.CLUSTER, Operation.ALTER, per_entity=True)),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0, Need(Resource.TRANSACTIONAL_ID, Operation.DESCRIBE, per_entity=True)),
    ApiKey.LIST_TRANSACTIONS: (0, 2, Need(Resource.TRANSACTIONAL_ID, Operation.DESCRIBE, per_entity=True)),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1, Need(Resource.GROUP, Operation.READ, per_entity=True)),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1, Need(Resource.GROUP, Operation.DESCRIBE, per_entity=True)),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (0, 0, Need(Resource.NONE, Operation.NONE)),
    ApiKey.PUSH_TELEMETRY: (0, 0, Need(Resource.NONE, Operation.NONE)),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1, Need(Resource.CLUSTER, Operation.DESCRIBE_CONFIGS)),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0, Need(Resource.TOPIC, Operation.DESCRIBE, per_entity=True)),
}
CONTROLLER = {
    ApiKey.FETCH: (13, 18, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
    ApiKey.SASL_HANDSHAKE: (0, 1, Need(Resource.NONE, Operation.NONE)),
    ApiKey.API_VERSIONS: (0, 4, Need(Resource.NONE, Operation.NONE)),
    ApiKey.CREATE_TOPICS: (2, 7, Need(Resource.TOPIC, Operation.CREATE, per_entity=True)),
    ApiKey.DELETE_TOPICS: (1, 6, Need(Resource.TOPIC, Operation.DELETE, per_entity=True)),
    ApiKey.DESCRIBE_ACLS: (1, 3, Need(Resource.CLUSTER, Operation.DESCRIBE)),
    ApiKey.CREATE_ACLS: (1, 3, Need(Resource.CLUSTER, Operation.ALTER)),
    ApiKey.DELETE_ACLS: (1, 3, Need(Resource.CLUSTER, Operation.ALTER)),
    ApiKey.ALTER_CONFIGS: (0, 2, Need(Resource.TOPIC, Operation.ALTER_CONFIGS, per_entity=True)),
    ApiKey.SASL_AUTHENTICATE: (0, 2, Need(Resource.NONE, Operation.NONE)),
    ApiKey.CREATE_PARTITIONS: (0, 3, Need(Resource.TOPIC, Operation.ALTER, per_entity=True)),
    ApiKey.ELECT_LEADERS: (0, 2, Need(Resource.CLUSTER, Operation.ALTER)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1, Need(Resource.TOPIC, Operation.ALTER_CONFIGS, per_entity=True)),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1, Need(Resource.CLUSTER, Operation.ALTER)),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0, Need(Resource.CLUSTER, Operation.DESCRIBE)),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0, Need(Resource.CLUSTER, Operation.DESCRIBE)),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0, Need(Resource.CLUSTER, Operation.ALTER)),
    ApiKey.VOTE: (0, 2, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
    ApiKey.BEGIN_QUORUM_EPOCH: (0, 1, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
    ApiKey.END_QUORUM_EPOCH: (0, 1, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
    ApiKey.DESCRIBE_QUORUM: (0, 2, Need(Resource.CLUSTER, Operation.DESCRIBE)),
    ApiKey.UPDATE_FEATURES: (0, 2, Need(Resource.CLUSTER, Operation.ALTER)),
    ApiKey.ENVELOPE: (0, 0, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
    ApiKey.FETCH_SNAPSHOT: (0, 1, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
    ApiKey.DESCRIBE_CLUSTER: (0, 2, Need(Resource.CLUSTER, Operation.ALTER)),
    ApiKey.BROKER_REGISTRATION: (0, 4, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
    ApiKey.BROKER_HEARTBEAT: (0, 2, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
    ApiKey.UNREGISTER_BROKER: (0, 0, Need(Resource.CLUSTER, Operation.ALTER)),
    ApiKey.ADD_RAFT_VOTER: (0, 1, Need(Resource.CLUSTER, Operation.ALTER)),
    ApiKey.REMOVE_RAFT_VOTER: (0, 0, Need(Resource.CLUSTER, Operation.ALTER)),
    ApiKey.UPDATE_RAFT_VOTER: (0, 0, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
    ApiKey.ALLOCATE_PRODUCER_IDS: (0, 0, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: (0, 0, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
    ApiKey.ALTER_PARTITION: (2, 3, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
    ApiKey.CONTROLLER_REGISTRATION: (0, 0, Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)),
}


def declared(services: Mapping[ApiKey, Service]) -> dict[ApiKey, tuple[int, int, Need]]:
    return {key: (*service.versions, service.need) for key, service in services.items()}


def test_the_tables_of_both_roles_have_the_expected_versions_and_permissions() -> None:
    listeners = f"PLAINTEXT://{LOOPBACK}:0,CONTROLLER://{LOOPBACK}:0"
    with EmbeddedNode({"listeners": listeners, "controller.listener.names": "CONTROLLER"}) as embedded:
        assert declared(embedded.node.broker.dispatcher._services) == BROKER
        assert declared(embedded.node.controller.dispatcher._services) == CONTROLLER


def test_unstable_versions_are_declared_only_when_enabled() -> None:
    with EmbeddedNode({"unstable.api.versions.enable": "true"}) as embedded:
        unstable = declared(embedded.node.broker.dispatcher._services)
        low, high, need = BROKER[ApiKey.INIT_PRODUCER_ID]
        assert unstable == {**BROKER, ApiKey.INIT_PRODUCER_ID: (low, high + 1, need)}


class OneApi:
    def __init__(self, key: ApiKey) -> None:
        self._key = key

    def services(self) -> list[Service]:
        return [Service(self._key, (0, 0), lambda context, request: None, NOTHING)]


def test_a_key_that_two_apis_declare_is_refused() -> None:
    table = make_table([OneApi(ApiKey.FETCH), OneApi(ApiKey.PRODUCE)])
    assert list(table) == [ApiKey.FETCH, ApiKey.PRODUCE]
    with pytest.raises(ValueError, match="FETCH is declared twice"):
        make_table([OneApi(ApiKey.FETCH), OneApi(ApiKey.PRODUCE), OneApi(ApiKey.FETCH)])
