"""Builds the API handlers of a broker, one function for each package of `headrace.api`."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from headrace.api.admin.acls import AclsApi
from headrace.api.admin.alter_configs import AlterConfigsApi
from headrace.api.admin.alter_replica_log_dirs import AlterReplicaLogDirsApi
from headrace.api.admin.describe_client_quotas import DescribeClientQuotasApi
from headrace.api.admin.describe_cluster import DescribeClusterApi
from headrace.api.admin.describe_configs import DescribeConfigsApi
from headrace.api.admin.describe_log_dirs import DescribeLogDirsApi
from headrace.api.admin.forwarded import ForwardedApi
from headrace.api.admin.telemetry import TelemetryApi
from headrace.api.admin.user_scram_credentials import ScramApi
from headrace.api.data.delete_records import DeleteRecordsApi
from headrace.api.data.describe_producers import DescribeProducersApi
from headrace.api.data.fetch import FetchApi
from headrace.api.data.list_offsets import ListOffsetsApi
from headrace.api.data.offset_for_leader_epoch import OffsetForLeaderEpochApi
from headrace.api.data.produce import ProduceApi
from headrace.api.groups.classic_groups import ClassicGroupsApi
from headrace.api.groups.consumer_groups import ConsumerGroupsApi
from headrace.api.groups.describe_groups import DescribeGroupsApi
from headrace.api.groups.find_coordinator import FindCoordinatorApi
from headrace.api.groups.offset_commit import OffsetCommitApi
from headrace.api.groups.offset_delete import OffsetDeleteApi
from headrace.api.groups.offset_fetch import OffsetFetchApi
from headrace.api.sasl import SaslApi
from headrace.api.table import Api
from headrace.api.topics.create_topics import CreateTopicsApi
from headrace.api.topics.delete_topics import DeleteTopicsApi
from headrace.api.topics.describe_topic_partitions import DescribeTopicPartitionsApi
from headrace.api.topics.metadata import MetadataApi
from headrace.api.transactions.add_offsets_to_txn import AddOffsetsToTxnApi
from headrace.api.transactions.add_partitions_to_txn import AddPartitionsToTxnApi
from headrace.api.transactions.coordinator_decisions import CoordinatorDecisions
from headrace.api.transactions.describe_transactions import DescribeTransactionsApi
from headrace.api.transactions.end_txn import EndTxnApi
from headrace.api.transactions.init_producer_id import InitProducerIdApi, TransactionalProducers
from headrace.api.transactions.txn_offset_commit import TxnOffsetCommitApi
from headrace.api.transactions.write_txn_markers import WriteTxnMarkersApi
from headrace.broker.channels.forwarding import Forwarding
from headrace.broker.client_telemetry import ClientTelemetry
from headrace.broker.dynamic_options import DynamicOptions
from headrace.broker.fetching.fetch_sessions import FetchSessions
from headrace.broker.membership.lost_brokers import LostBrokers
from headrace.broker.topic_creation import TopicCreation
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.metadata.image import Image
from headrace.node.context import NodeContext
from headrace.node.wiring.coordinators import Coordinators
from headrace.observe.client_series import ClientSeries
from headrace.replication.dir_moves import DirMoves
from headrace.replication.replicas import Replicas
from headrace.security.authorizer import StandardAuthorizer

RACK_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"  # the only replica.selector.class we have


class BrokerParts(Struct, frozen=True):
    """The components of a broker that its API handlers use."""

    image: Callable[[], Image]
    options: DynamicOptions
    replicas: Replicas
    fetch_sessions: FetchSessions
    lost_brokers: LostBrokers
    moves: DirMoves
    forwarding: Forwarding
    creation: TopicCreation
    coordinators: Coordinators
    producer_ids: ProducerIds
    telemetry: ClientTelemetry
    client_series: ClientSeries
    authorizer: StandardAuthorizer | None


def make_broker_apis(context: NodeContext, parts: BrokerParts) -> list[Api]:
    """Return all handlers of a broker's listeners except ApiVersions, which lists them."""
    return [
        *_data_apis(context, parts),
        *_topic_apis(context, parts),
        *_group_apis(context, parts),
        *_transaction_apis(context, parts),
        *_admin_apis(context, parts),
        SaslApi(),
    ]


def _data_apis(context: NodeContext, parts: BrokerParts) -> list[Api]:
    settings, replicas, coordinators = context.settings, parts.replicas, parts.coordinators
    context.metrics.gauge(
        "kafka_server_fetchsessioncache_numincrementalfetchsessions",
        "Open fetch sessions.",
        lambda: float(len(parts.fetch_sessions)),
    )
    return [
        ProduceApi(
            replicas, parts.image, context.clock, context.loop, coordinators.verifier, coordinators.is_verifying
        ),
        FetchApi(
            replicas,
            parts.fetch_sessions,
            parts.image,
            context.loop,
            settings.number("fetch.max.bytes"),
            context.clock,
            selects_by_rack=settings.text("replica.selector.class") == RACK_SELECTOR,
        ),
        ListOffsetsApi(replicas),
        DeleteRecordsApi(replicas, context.clock),
        OffsetForLeaderEpochApi(replicas),
        DescribeProducersApi(replicas),
    ]


def _topic_apis(context: NodeContext, parts: BrokerParts) -> list[Api]:
    settings = context.settings
    return [
        MetadataApi(
            parts.image,
            parts.creation,
            settings.node_id,
            context.cluster_id,
            settings.flag("auto.create.topics.enable"),
            parts.lost_brokers,
        ),
        CreateTopicsApi(parts.forwarding, parts.creation),
        DeleteTopicsApi(parts.forwarding, parts.creation, is_enabled=settings.flag("delete.topic.enable")),
        DescribeTopicPartitionsApi(parts.image, settings.number("max.request.partition.size.limit")),
    ]


def _group_apis(context: NodeContext, parts: BrokerParts) -> list[Api]:
    settings, groups = context.settings, parts.coordinators.groups
    return [
        FindCoordinatorApi(parts.image, parts.creation, settings.node_id, groups, parts.coordinators.transactions),
        OffsetCommitApi(groups, parts.image),
        OffsetFetchApi(groups, parts.image),
        OffsetDeleteApi(groups, parts.image),
        ClassicGroupsApi(groups),
        DescribeGroupsApi(groups),
        ConsumerGroupsApi(
            groups,
            parts.image,
            is_enabled="consumer" in settings.texts("group.coordinator.rebalance.protocols"),
        ),
    ]


def _transaction_apis(context: NodeContext, parts: BrokerParts) -> list[Api]:
    settings, coordinators = context.settings, parts.coordinators
    transactions, groups = coordinators.transactions, coordinators.groups
    decisions = CoordinatorDecisions(transactions, parts.producer_ids)
    return [
        InitProducerIdApi(
            parts.producer_ids,
            TransactionalProducers(decisions),
            unstable_versions=settings.flag("unstable.api.versions.enable"),
        ),
        AddPartitionsToTxnApi(transactions, parts.image),
        AddOffsetsToTxnApi(transactions, parts.image, settings.number("offsets.topic.num.partitions")),
        EndTxnApi(decisions),
        TxnOffsetCommitApi(groups, parts.image, coordinators.verifier, coordinators.is_verifying),
        WriteTxnMarkersApi(parts.replicas, context.clock, groups.end_transaction),
        DescribeTransactionsApi(transactions, context.clock),
    ]


def _admin_apis(context: NodeContext, parts: BrokerParts) -> list[Api]:
    node_id, image = context.settings.node_id, parts.image
    return [
        DescribeClusterApi(image, node_id, context.cluster_id),
        DescribeConfigsApi(image, parts.options, node_id),
        AlterConfigsApi(image, parts.options, parts.forwarding, node_id),
        DescribeLogDirsApi(parts.replicas, parts.replicas.directories, parts.moves, context.loop),
        AlterReplicaLogDirsApi(parts.moves),
        DescribeClientQuotasApi(image),
        ForwardedApi(parts.forwarding, parts.creation),
        AclsApi(lambda: image().acls.values(), parts.forwarding, parts.creation, parts.authorizer),
        ScramApi(lambda: image().scram, parts.forwarding, parts.creation),
        TelemetryApi(parts.telemetry, parts.client_series, context.metrics, context.loop),
    ]
