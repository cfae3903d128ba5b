"""Converts a state into the records that recreate it, in the order of Kafka's snapshots.

Features come first, because they determine how the rest is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.base.ids import Uuid
from headrace.metadata.image import Broker, Partition
from headrace.metadata.records import CORDONED_LEVEL, DIRECTORIES_LEVEL, METADATA_VERSION_MAX
from headrace.metadata.state import METADATA_VERSION, ClusterState
from headrace.protocol.messages.stored.metadata_brokers import RegisterBrokerRecord
from headrace.protocol.messages.stored.metadata_cluster import ClientQuotaRecord, ConfigRecord, FeatureLevelRecord
from headrace.protocol.messages.stored.metadata_topics import PartitionRecord, TopicRecord


def snapshot_records(state: ClusterState) -> Iterator[Any]:
    """Yield the records of a snapshot lazily, so that a shell can pause; the state must not change meanwhile."""
    level = state.features.get(METADATA_VERSION) or METADATA_VERSION_MAX
    if METADATA_VERSION in state.features:
        yield FeatureLevelRecord(name=METADATA_VERSION, feature_level=level)
    for name, feature_level in state.features.items():
        if name != METADATA_VERSION:
            yield FeatureLevelRecord(name=name, feature_level=feature_level)
    for broker in state.brokers.values():
        yield _broker(broker, level)
    yield from state.controllers.values()
    for topic_id, name in state.topic_names.items():
        yield TopicRecord(name=name, topic_id=topic_id)
        for index, partition in enumerate(state.partitions_of(topic_id)):
            yield _partition(topic_id, index, partition)
    for (resource_type, resource), values in state.configs.items():
        for name, value in values.items():
            yield ConfigRecord(resource_type=resource_type, resource_name=resource, name=name, value=value)
    for entity, quotas in state.client_quotas.items():
        parts = [ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
        for key, quota in quotas.items():
            yield ClientQuotaRecord(entity=parts, key=key, value=quota)
    for cells in (state.producer_ids, state.acls, state.scram, state.tokens, state.unknown):
        yield from cells.values()


def _broker(broker: Broker, level: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            RegisterBrokerRecord.BrokerEndpoint(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in broker.endpoints
        ],
        features=[
            RegisterBrokerRecord.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs) if level >= DIRECTORIES_LEVEL else [],
        cordoned_log_dirs=list(broker.cordoned_log_dirs) if level >= CORDONED_LEVEL else None,
    )


def _partition(topic_id: Uuid, index: int, partition: Partition) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )
