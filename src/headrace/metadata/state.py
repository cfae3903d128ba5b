"""The state that the metadata log describes and the effect of each record on it, shared by controller and broker.

The controller keeps it in tables that can be rolled back, a broker in plain dicts. Records that are not used yet (tokens,
types of a later version) are kept unchanged, so that a snapshot loses nothing (metadata.snapshot).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from headrace.base.errors import CorruptData
from headrace.base.ids import NodeId, Uuid
from headrace.metadata.acls import acl_of
from headrace.metadata.image import NO_CONFIG, TOPIC_CONFIG, Broker, Endpoint, Partition, QuotaEntity
from headrace.metadata.records import UnknownRecord
from headrace.protocol.messages.stored.metadata_brokers import (
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.protocol.messages.stored.metadata_cluster import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
)
from headrace.protocol.messages.stored.metadata_security import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from headrace.protocol.messages.stored.metadata_topics import (
    ClearElrRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from headrace.security.acls import Acl

K = TypeVar("K", contravariant=True)
V = TypeVar("V")

LEADER_UNCHANGED = -2
NEXT_PRODUCER_ID = "next"
KRAFT_VERSION = "kraft.version"
METADATA_VERSION = "metadata.version"


class Cells(Protocol[K, V]):
    """The interface that a dict and a statemachine Table share."""

    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: K, /) -> V: ...
    def __setitem__(self, key: K, value: V, /) -> None: ...
    def __delitem__(self, key: K, /) -> None: ...
    def __len__(self) -> int: ...
    def get(self, key: K, /) -> V | None: ...
    def items(self) -> Iterable[tuple[Any, V]]: ...
    def values(self) -> Iterable[V]: ...


class ClusterState:
    def __init__(self, cells: Callable[[], Any]) -> None:
        """Create an empty state; `cells` returns an empty dict or Table."""
        self.brokers: Cells[int, Broker] = cells()
        self.topic_names: Cells[Uuid, str] = cells()
        self.topic_ids: Cells[str, Uuid] = cells()
        self.partitions: Cells[tuple[Uuid, int], Partition] = cells()
        self.configs: Cells[tuple[int, str], Mapping[str, str]] = cells()
        self.features: Cells[str, int] = cells()
        self.producer_ids: Cells[str, ProducerIdsRecord] = cells()
        self.controllers: Cells[int, RegisterControllerRecord] = cells()
        self.client_quotas: Cells[QuotaEntity, Mapping[str, float]] = cells()
        self.acls: Cells[Uuid, AccessControlEntryRecord] = cells()
        self.acl_ids: Cells[Acl, Uuid] = cells()  # prevents duplicate ACLs
        self.scram: Cells[tuple[str, int], UserScramCredentialRecord] = cells()  # by user and mechanism
        self.tokens: Cells[str, DelegationTokenRecord] = cells()
        self.unknown: Cells[int, UnknownRecord] = cells()  # in the order of the log

    def partitions_of(self, topic_id: Uuid) -> Iterator[Partition]:
        """Yield the partitions of a topic in the order of their indexes, which have no gaps."""
        index = 0
        while (partition := self.partitions.get((topic_id, index))) is not None:
            yield partition
            index += 1

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        return self.configs.get((resource_type, name)) or NO_CONFIG

    def next_producer_id(self) -> int:
        newest = self.producer_ids.get(NEXT_PRODUCER_ID)
        return 0 if newest is None else newest.next_producer_id


def replay(state: ClusterState, record: Any) -> None:
    effect = _EFFECTS.get(type(record))
    if effect is not None:
        effect(state, record)


def _register_broker(state: ClusterState, record: RegisterBrokerRecord) -> None:
    state.brokers[record.broker_id] = Broker(
        id=record.broker_id,
        epoch=record.broker_epoch,
        incarnation_id=Uuid(record.incarnation_id),
        endpoints=tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
        features=MappingProxyType(
            {f.name: (f.min_supported_version, f.max_supported_version) for f in record.features}
        ),
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        log_dirs=tuple(Uuid(directory) for directory in record.log_dirs),
        cordoned_log_dirs=tuple(Uuid(directory) for directory in record.cordoned_log_dirs or ()),
    )


def _unregister_broker(state: ClusterState, record: UnregisterBrokerRecord) -> None:
    if record.broker_id in state.brokers:
        del state.brokers[record.broker_id]


def _change_broker(state: ClusterState, record: BrokerRegistrationChangeRecord) -> None:
    broker = _broker(state, record.broker_id, record.broker_epoch)
    if record.fenced:
        broker = replace(broker, fenced=record.fenced > 0)
    if record.in_controlled_shutdown:
        broker = replace(broker, in_controlled_shutdown=True)
    if record.log_dirs:
        broker = replace(broker, log_dirs=tuple(Uuid(directory) for directory in record.log_dirs))
    if record.cordoned_log_dirs is not None:
        broker = replace(broker, cordoned_log_dirs=tuple(Uuid(directory) for directory in record.cordoned_log_dirs))
    state.brokers[record.broker_id] = broker


def _fence_broker(state: ClusterState, record: FenceBrokerRecord) -> None:
    state.brokers[record.id] = replace(_broker(state, record.id, record.epoch), fenced=True)


def _unfence_broker(state: ClusterState, record: UnfenceBrokerRecord) -> None:
    state.brokers[record.id] = replace(_broker(state, record.id, record.epoch), fenced=False)


def _broker(state: ClusterState, broker_id: int, epoch: int) -> Broker:
    broker = state.brokers.get(broker_id)
    if broker is None or broker.epoch != epoch:
        raise CorruptData(f"a metadata record refers to broker {broker_id} at epoch {epoch}, which is not registered")
    return broker


def _topic(state: ClusterState, record: TopicRecord) -> None:
    state.topic_names[Uuid(record.topic_id)] = record.name
    state.topic_ids[record.name] = Uuid(record.topic_id)


def _remove_topic(state: ClusterState, record: RemoveTopicRecord) -> None:
    topic_id = Uuid(record.topic_id)
    name = state.topic_names.get(topic_id)
    if name is None:
        raise CorruptData(f"a metadata record removes topic {topic_id.hex()}, which does not exist")
    del state.topic_names[topic_id]
    del state.topic_ids[name]
    index = 0
    while (topic_id, index) in state.partitions:
        del state.partitions[(topic_id, index)]
        index += 1
    if (TOPIC_CONFIG, name) in state.configs:
        del state.configs[(TOPIC_CONFIG, name)]


def _partition(state: ClusterState, record: PartitionRecord) -> None:
    state.partitions[(Uuid(record.topic_id), record.partition_id)] = Partition(
        replicas=tuple(record.replicas),
        isr=tuple(record.isr),
        leader=NodeId(record.leader),
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        directories=tuple(Uuid(directory) for directory in record.directories),
        removing_replicas=tuple(record.removing_replicas),
        adding_replicas=tuple(record.adding_replicas),
        elr=tuple(record.eligible_leader_replicas or ()),
        last_known_elr=tuple(record.last_known_elr or ()),
        leader_recovery_state=record.leader_recovery_state,
    )


def _change_partition(state: ClusterState, record: PartitionChangeRecord) -> None:
    key = (Uuid(record.topic_id), record.partition_id)
    old = state.partitions.get(key)
    if old is None:
        raise CorruptData(f"a metadata record changes partition {record.partition_id} of an unknown topic")

    def changed(new: list[int] | None, was: tuple[int, ...]) -> tuple[int, ...]:
        return was if new is None else tuple(new)

    leads_anew = record.leader != LEADER_UNCHANGED
    state.partitions[key] = replace(
        old,
        replicas=changed(record.replicas, old.replicas),
        isr=changed(record.isr, old.isr),
        removing_replicas=changed(record.removing_replicas, old.removing_replicas),
        adding_replicas=changed(record.adding_replicas, old.adding_replicas),
        elr=changed(record.eligible_leader_replicas, old.elr),
        last_known_elr=changed(record.last_known_elr, old.last_known_elr),
        directories=old.directories if record.directories is None else tuple(Uuid(d) for d in record.directories),
        leader=record.leader if leads_anew else old.leader,
        leader_epoch=old.leader_epoch + leads_anew,
        leader_recovery_state=old.leader_recovery_state
        if record.leader_recovery_state < 0
        else record.leader_recovery_state,
        partition_epoch=old.partition_epoch + 1,
    )


def _config(state: ClusterState, record: ConfigRecord) -> None:
    key = (record.resource_type, record.resource_name)
    values = dict(state.configs.get(key) or {})
    if record.value is None:
        values.pop(record.name, None)
    else:
        values[record.name] = record.value
    if values:
        state.configs[key] = MappingProxyType(values)
    elif key in state.configs:
        del state.configs[key]


def _clear_elr(state: ClusterState, record: ClearElrRecord) -> None:
    """Clear the ELR of one topic or of all: what min.insync.replicas promised may no longer be true."""
    if record.topic_name:
        topic_id = state.topic_ids.get(record.topic_name)
        if topic_id is None:
            raise CorruptData(f"a metadata record refers to topic {record.topic_name}, which does not exist")
        keys = [(topic_id, index) for index, _ in enumerate(state.partitions_of(topic_id))]
    else:
        keys = [key for key, _ in list(state.partitions.items())]
    for key in keys:
        partition = state.partitions[key]
        if partition.elr or partition.last_known_elr:
            state.partitions[key] = replace(
                partition, elr=(), last_known_elr=(), partition_epoch=partition.partition_epoch + 1
            )


def _feature(state: ClusterState, record: FeatureLevelRecord) -> None:
    if record.name == KRAFT_VERSION:
        return  # kept in the quorum's control records; a feature record for it is an old bug (KAFKA-18979)
    if record.feature_level or record.name == METADATA_VERSION:
        state.features[record.name] = record.feature_level
    elif record.name in state.features:
        del state.features[record.name]


def _producer_ids(state: ClusterState, record: ProducerIdsRecord) -> None:
    state.producer_ids[NEXT_PRODUCER_ID] = record


def _controller(state: ClusterState, record: RegisterControllerRecord) -> None:
    state.controllers[record.controller_id] = record


def _entity_type(part: ClientQuotaRecord.EntityData) -> str:
    return part.entity_type


def _client_quota(state: ClusterState, record: ClientQuotaRecord) -> None:
    entity = tuple((part.entity_type, part.entity_name) for part in sorted(record.entity, key=_entity_type))
    values = dict(state.client_quotas.get(entity) or {})
    if record.remove:
        values.pop(record.key, None)
    else:
        values[record.key] = record.value
    if values:
        state.client_quotas[entity] = MappingProxyType(values)
    elif entity in state.client_quotas:
        del state.client_quotas[entity]


def _acl(state: ClusterState, record: AccessControlEntryRecord) -> None:
    state.acls[Uuid(record.id)] = record
    state.acl_ids[acl_of(record)] = Uuid(record.id)


def _remove_acl(state: ClusterState, record: RemoveAccessControlEntryRecord) -> None:
    old = state.acls.get(Uuid(record.id))
    if old is None:
        return
    del state.acls[Uuid(record.id)]
    if state.acl_ids.get(acl_of(old)) == record.id:
        del state.acl_ids[acl_of(old)]


def _scram(state: ClusterState, record: UserScramCredentialRecord) -> None:
    state.scram[(record.name, record.mechanism)] = record


def _remove_scram(state: ClusterState, record: RemoveUserScramCredentialRecord) -> None:
    if (record.name, record.mechanism) in state.scram:
        del state.scram[(record.name, record.mechanism)]


def _token(state: ClusterState, record: DelegationTokenRecord) -> None:
    state.tokens[record.token_id] = record


def _remove_token(state: ClusterState, record: RemoveDelegationTokenRecord) -> None:
    if record.token_id in state.tokens:
        del state.tokens[record.token_id]


def _unknown(state: ClusterState, record: UnknownRecord) -> None:
    state.unknown[len(state.unknown)] = record


_EFFECTS: dict[type[Any], Callable[[ClusterState, Any], None]] = {
    RegisterBrokerRecord: _register_broker,
    UnregisterBrokerRecord: _unregister_broker,
    BrokerRegistrationChangeRecord: _change_broker,
    FenceBrokerRecord: _fence_broker,
    UnfenceBrokerRecord: _unfence_broker,
    TopicRecord: _topic,
    RemoveTopicRecord: _remove_topic,
    PartitionRecord: _partition,
    PartitionChangeRecord: _change_partition,
    ConfigRecord: _config,
    FeatureLevelRecord: _feature,
    ProducerIdsRecord: _producer_ids,
    ClearElrRecord: _clear_elr,
    RegisterControllerRecord: _controller,
    ClientQuotaRecord: _client_quota,
    AccessControlEntryRecord: _acl,
    RemoveAccessControlEntryRecord: _remove_acl,
    UserScramCredentialRecord: _scram,
    RemoveUserScramCredentialRecord: _remove_scram,
    DelegationTokenRecord: _token,
    RemoveDelegationTokenRecord: _remove_token,
    UnknownRecord: _unknown,
}
