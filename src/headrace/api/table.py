"""The tables of supported APIs, each with its versions, its handler and the permission that it needs.

The ApiVersions response is made from them. It lists the telemetry APIs only while a subscription exists.
"""

from __future__ import annotations

from headrace.api import sasl
from headrace.api.admin.acls import AclsApi, ControllerAclsApi, refuse_creations, refuse_filters
from headrace.api.admin.alter_configs import AlterConfigsApi
from headrace.api.admin.client_quotas import ClientQuotasApi
from headrace.api.admin.describe_cluster import ClusterApi, ControllerClusterApi
from headrace.api.admin.describe_configs import ConfigsApi
from headrace.api.admin.forwarded import ForwardedApi
from headrace.api.admin.log_dirs import LogDirsApi
from headrace.api.admin.telemetry import TelemetryApi
from headrace.api.admin.user_scram_credentials import (
    ControllerScramApi,
    ScramApi,
    refuse_alteration,
    refuse_description,
)
from headrace.api.api_versions import VersionsApi
from headrace.api.controller.admin_requests import ControllerAdminApi
from headrace.api.controller.broker_requests import ControllerApi
from headrace.api.controller.quorum_requests import QuorumApi
from headrace.api.data.delete_records import RecordsApi
from headrace.api.data.fetch import FetchApi
from headrace.api.data.list_offsets import OffsetsApi
from headrace.api.data.produce import ProduceApi
from headrace.api.error_responses import refuse
from headrace.api.groups.classic_groups import GroupsApi
from headrace.api.groups.consumer_groups import ConsumerGroupsApi
from headrace.api.groups.find_coordinator import FindCoordinatorApi
from headrace.api.groups.offset_commit import CommittedOffsetsApi
from headrace.api.topics.create_topics import TopicsApi
from headrace.api.topics.describe_topic_partitions import TopicPagesApi
from headrace.api.topics.metadata import MetadataApi
from headrace.api.transactions.add_partitions_to_txn import TransactionsApi
from headrace.api.transactions.describe_transactions import TransactionReadsApi
from headrace.api.transactions.init_producer_id import ProducersApi
from headrace.api.transactions.txn_offset_commit import TransactionalOffsetsApi
from headrace.api.transactions.write_txn_markers import MarkersApi
from headrace.base.eager import at_once
from headrace.protocol.apis import ApiKey
from headrace.security.resources import Need, Operation, Resource
from headrace.server.dispatch import Service

NOTHING = Need(Resource.NONE, Operation.NONE)
CLUSTER_ACTION = Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)
# The handler accepts either operation.
CLUSTER_ACTION_OR_ALTER = Need(Resource.CLUSTER, Operation.CLUSTER_ACTION, per_entity=True)
DESCRIBE_CLUSTER = Need(Resource.CLUSTER, Operation.DESCRIBE)
ALTER_CLUSTER = Need(Resource.CLUSTER, Operation.ALTER)
# For requests that a broker only forwards: the controller checks the permission.
ALTER_CLUSTER_FORWARDED = Need(Resource.CLUSTER, Operation.ALTER, per_entity=True)
DESCRIBE_CLUSTER_FORWARDED = Need(Resource.CLUSTER, Operation.DESCRIBE, per_entity=True)
DESCRIBE_CLUSTER_CONFIGS = Need(Resource.CLUSTER, Operation.DESCRIBE_CONFIGS)


def _topic(operation: Operation) -> Need:
    return Need(Resource.TOPIC, operation, per_entity=True)


def _group(operation: Operation) -> Need:
    return Need(Resource.GROUP, operation, per_entity=True)


def _transactional_id(operation: Operation) -> Need:
    return Need(Resource.TRANSACTIONAL_ID, operation, per_entity=True)


def _table(*services: Service) -> dict[ApiKey, Service]:
    return {service.key: service for service in services}


def broker_table(
    *,
    versions: VersionsApi,
    produce: ProduceApi,
    fetch: FetchApi,
    offsets: OffsetsApi,
    metadata: MetadataApi,
    topics: TopicsApi,
    producers: ProducersApi,
    coordinator: FindCoordinatorApi,
    committed: CommittedOffsetsApi,
    groups: GroupsApi,
    consumer_groups: ConsumerGroupsApi,
    cluster: ClusterApi,
    configs: ConfigsApi,
    alter_configs: AlterConfigsApi,
    records: RecordsApi,
    pages: TopicPagesApi,
    log_dirs: LogDirsApi,
    quotas: ClientQuotasApi,
    forwarded: ForwardedApi,
    acls: AclsApi,
    scram: ScramApi,
    telemetry: TelemetryApi,
    transactions: TransactionsApi,
    transaction_reads: TransactionReadsApi,
    transactional_offsets: TransactionalOffsetsApi,
    markers: MarkersApi,
    unstable_versions: bool = False,
) -> dict[ApiKey, Service]:
    """Return the API table of a broker; `unstable_versions` adds versions that Kafka may still change."""
    return _table(
        Service(ApiKey.PRODUCE, (3, 13), produce.handle, _topic(Operation.WRITE)),
        Service(ApiKey.FETCH, (4, 18), fetch.handle, _topic(Operation.READ)),
        Service(ApiKey.LIST_OFFSETS, (1, 11), offsets.handle, _topic(Operation.DESCRIBE)),
        Service(ApiKey.METADATA, (0, 13), metadata.handle, _topic(Operation.DESCRIBE)),
        Service(ApiKey.FIND_COORDINATOR, (0, 6), coordinator.handle, Need(Resource.GROUP, Operation.DESCRIBE, True)),
        Service(ApiKey.CONSUMER_GROUP_HEARTBEAT, (0, 1), consumer_groups.heartbeat, _group(Operation.READ)),
        Service(ApiKey.CONSUMER_GROUP_DESCRIBE, (0, 1), consumer_groups.describe, _group(Operation.DESCRIBE)),
        Service(ApiKey.OFFSET_COMMIT, (2, 10), committed.commit, _group(Operation.READ)),
        Service(ApiKey.OFFSET_FETCH, (1, 10), committed.fetch, _group(Operation.DESCRIBE)),
        Service(ApiKey.OFFSET_DELETE, (0, 0), committed.delete, _group(Operation.DELETE)),
        Service(ApiKey.JOIN_GROUP, (0, 9), groups.join, _group(Operation.READ)),
        Service(ApiKey.SYNC_GROUP, (0, 5), groups.sync, _group(Operation.READ)),
        Service(ApiKey.HEARTBEAT, (0, 4), groups.heartbeat, _group(Operation.READ)),
        Service(ApiKey.LEAVE_GROUP, (0, 5), groups.leave, _group(Operation.READ)),
        Service(ApiKey.LIST_GROUPS, (0, 5), groups.list, _group(Operation.DESCRIBE)),
        Service(ApiKey.DESCRIBE_GROUPS, (0, 6), groups.describe, _group(Operation.DESCRIBE)),
        Service(ApiKey.DELETE_GROUPS, (0, 2), groups.delete, _group(Operation.DELETE)),
        Service(ApiKey.API_VERSIONS, (0, 4), versions.handle, NOTHING),
        Service(ApiKey.CREATE_TOPICS, (2, 7), topics.create, _topic(Operation.CREATE)),
        Service(ApiKey.DELETE_TOPICS, (1, 6), topics.delete, _topic(Operation.DELETE)),
        Service(
            ApiKey.INIT_PRODUCER_ID,
            (0, 6 if unstable_versions else 5),
            producers.init_producer_id,
            Need(Resource.CLUSTER, Operation.IDEMPOTENT_WRITE, per_entity=True),
        ),
        Service(ApiKey.DESCRIBE_CONFIGS, (1, 4), configs.describe, _topic(Operation.DESCRIBE_CONFIGS)),
        # As in Kafka, every client may list the brokers; the handler checks the permission for the authorized operations.
        Service(ApiKey.DESCRIBE_CLUSTER, (0, 2), cluster.describe, Need(Resource.CLUSTER, Operation.DESCRIBE, True)),
        Service(ApiKey.LIST_CONFIG_RESOURCES, (0, 1), configs.list_resources, DESCRIBE_CLUSTER_CONFIGS),
        Service(ApiKey.ALTER_CONFIGS, (0, 2), alter_configs.replace, _topic(Operation.ALTER_CONFIGS)),
        Service(ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1), alter_configs.incrementally, _topic(Operation.ALTER_CONFIGS)),
        Service(ApiKey.DELETE_RECORDS, (0, 2), records.delete, _topic(Operation.DELETE)),
        Service(ApiKey.OFFSET_FOR_LEADER_EPOCH, (2, 4), records.epoch_ends, _topic(Operation.DESCRIBE)),
        Service(ApiKey.DESCRIBE_PRODUCERS, (0, 0), records.producers, _topic(Operation.READ)),
        Service(ApiKey.DESCRIBE_TOPIC_PARTITIONS, (0, 0), pages.describe, _topic(Operation.DESCRIBE)),
        Service(ApiKey.DESCRIBE_LOG_DIRS, (1, 5), log_dirs.describe, DESCRIBE_CLUSTER),
        Service(ApiKey.ALTER_REPLICA_LOG_DIRS, (1, 2), log_dirs.alter, ALTER_CLUSTER, refuse),
        Service(ApiKey.DESCRIBE_CLIENT_QUOTAS, (0, 1), quotas.describe, DESCRIBE_CLUSTER_CONFIGS),
        Service(ApiKey.CREATE_PARTITIONS, (0, 3), forwarded.create_partitions, _topic(Operation.ALTER)),
        Service(ApiKey.ELECT_LEADERS, (0, 2), forwarded.handle, ALTER_CLUSTER_FORWARDED),
        Service(ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 1), forwarded.handle, ALTER_CLUSTER_FORWARDED),
        Service(ApiKey.LIST_PARTITION_REASSIGNMENTS, (0, 0), forwarded.handle, DESCRIBE_CLUSTER_FORWARDED),
        Service(ApiKey.DESCRIBE_QUORUM, (0, 2), forwarded.handle, DESCRIBE_CLUSTER_FORWARDED),
        Service(ApiKey.UPDATE_FEATURES, (0, 2), forwarded.handle, ALTER_CLUSTER_FORWARDED),
        Service(ApiKey.UNREGISTER_BROKER, (0, 0), forwarded.handle, ALTER_CLUSTER_FORWARDED),
        Service(ApiKey.SASL_HANDSHAKE, (0, 1), sasl.handshake, NOTHING),
        Service(ApiKey.SASL_AUTHENTICATE, (0, 2), sasl.authenticate, NOTHING),
        Service(ApiKey.DESCRIBE_ACLS, (1, 3), acls.describe, DESCRIBE_CLUSTER),
        Service(ApiKey.CREATE_ACLS, (1, 3), acls.create, ALTER_CLUSTER_FORWARDED),
        Service(ApiKey.DELETE_ACLS, (1, 3), acls.delete, ALTER_CLUSTER_FORWARDED),
        Service(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), scram.describe, DESCRIBE_CLUSTER, refuse_description),
        Service(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, (0, 0), scram.alter, ALTER_CLUSTER_FORWARDED),
        # As in Kafka, every client that may connect may push its metrics.
        Service(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, (0, 0), telemetry.get_subscriptions, NOTHING),
        Service(ApiKey.PUSH_TELEMETRY, (0, 0), telemetry.push, NOTHING),
        Service(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            (0, 5),
            at_once(transactions.add_partitions),
            _transactional_id(Operation.WRITE),
        ),
        Service(
            ApiKey.ADD_OFFSETS_TO_TXN, (0, 4), at_once(transactions.add_offsets), _transactional_id(Operation.WRITE)
        ),
        Service(ApiKey.END_TXN, (0, 5), at_once(transactions.end), _transactional_id(Operation.WRITE)),
        Service(
            ApiKey.TXN_OFFSET_COMMIT, (0, 5), at_once(transactional_offsets.commit), _transactional_id(Operation.WRITE)
        ),
        Service(ApiKey.WRITE_TXN_MARKERS, (1, 2), at_once(markers.write), CLUSTER_ACTION_OR_ALTER),
        Service(
            ApiKey.DESCRIBE_TRANSACTIONS, (0, 0), transaction_reads.describe, _transactional_id(Operation.DESCRIBE)
        ),
        Service(ApiKey.LIST_TRANSACTIONS, (0, 2), transaction_reads.list, _transactional_id(Operation.DESCRIBE)),
    )


def controller_table(
    *,
    versions: VersionsApi,
    controller: ControllerApi,
    admin: ControllerAdminApi,
    quorum: QuorumApi,
    cluster: ControllerClusterApi,
    acls: ControllerAclsApi,
    scram: ControllerScramApi,
) -> dict[ApiKey, Service]:
    return _table(
        # Only versions with topic ids, by which observers of the quorum name the metadata log.
        Service(ApiKey.FETCH, (13, 18), quorum.fetch, CLUSTER_ACTION, metric_name="FetchFollower"),
        Service(ApiKey.FETCH_SNAPSHOT, (0, 1), quorum.fetch_snapshot, CLUSTER_ACTION),
        Service(ApiKey.DESCRIBE_QUORUM, (0, 2), quorum.describe, DESCRIBE_CLUSTER),
        # Stricter than on a broker: a client that can list the controllers can do a lot to them (KIP-919).
        Service(ApiKey.DESCRIBE_CLUSTER, (0, 2), cluster.describe, ALTER_CLUSTER),
        Service(ApiKey.ALTER_CONFIGS, (0, 2), admin.alter_configs, _topic(Operation.ALTER_CONFIGS)),
        Service(ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1), admin.alter_configs, _topic(Operation.ALTER_CONFIGS)),
        Service(ApiKey.CREATE_PARTITIONS, (0, 3), admin.create_partitions, _topic(Operation.ALTER)),
        Service(ApiKey.ELECT_LEADERS, (0, 2), admin.handle, ALTER_CLUSTER, refuse),
        Service(ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 1), admin.handle, ALTER_CLUSTER, refuse),
        Service(ApiKey.LIST_PARTITION_REASSIGNMENTS, (0, 0), admin.handle, DESCRIBE_CLUSTER, refuse),
        Service(ApiKey.UPDATE_FEATURES, (0, 2), admin.handle, ALTER_CLUSTER, refuse),
        Service(ApiKey.UNREGISTER_BROKER, (0, 0), admin.handle, ALTER_CLUSTER, refuse),
        Service(ApiKey.API_VERSIONS, (0, 4), versions.handle, NOTHING),
        Service(ApiKey.CREATE_TOPICS, (2, 7), controller.create_topics, _topic(Operation.CREATE)),
        Service(ApiKey.DELETE_TOPICS, (1, 6), controller.delete_topics, _topic(Operation.DELETE)),
        Service(ApiKey.ENVELOPE, (0, 0), controller.envelope, CLUSTER_ACTION),
        Service(ApiKey.BROKER_REGISTRATION, (0, 4), controller.register, CLUSTER_ACTION),
        Service(ApiKey.BROKER_HEARTBEAT, (0, 2), controller.heartbeat, CLUSTER_ACTION),
        Service(ApiKey.ALLOCATE_PRODUCER_IDS, (0, 0), controller.allocate_producer_ids, CLUSTER_ACTION),
        Service(ApiKey.ASSIGN_REPLICAS_TO_DIRS, (0, 0), controller.assign_replicas_to_dirs, CLUSTER_ACTION),
        Service(ApiKey.SASL_HANDSHAKE, (0, 1), sasl.handshake, NOTHING),
        Service(ApiKey.SASL_AUTHENTICATE, (0, 2), sasl.authenticate, NOTHING),
        Service(ApiKey.DESCRIBE_ACLS, (1, 3), acls.describe, DESCRIBE_CLUSTER),
        Service(ApiKey.CREATE_ACLS, (1, 3), acls.create, ALTER_CLUSTER, refuse_creations),
        Service(ApiKey.DELETE_ACLS, (1, 3), acls.delete, ALTER_CLUSTER, refuse_filters),
        Service(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), scram.describe, DESCRIBE_CLUSTER, refuse_description),
        Service(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, (0, 0), scram.alter, ALTER_CLUSTER, refuse_alteration),
    )
