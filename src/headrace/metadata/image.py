"""The cluster metadata as immutable values, and the image of all of it at one offset of the metadata log."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct, field

from headrace.base.ids import NO_NODE, ZERO_UUID, Uuid
from headrace.protocol.messages.stored.metadata_brokers import RegisterControllerRecord
from headrace.protocol.messages.stored.metadata_security import AccessControlEntryRecord, UserScramCredentialRecord

# Config resource types, as in the protocol and in ConfigRecord.
TOPIC_CONFIG = 2
BROKER_CONFIG = 4
LOGGER_CONFIG = 8
METRICS_CONFIG = 16
GROUP_CONFIG = 32

# (type, name) pairs, sorted by type; None as name stands for the default of that type.
QuotaEntity = tuple[tuple[str, str | None], ...]

# Reserved directory ids (KIP-858). The first two leave the choice to the broker; LOST is a directory that has failed.
MIGRATING, UNASSIGNED, LOST = ZERO_UUID, Uuid(bytes(15) + b"\x01"), Uuid(bytes(15) + b"\x02")

RECOVERED = 0
RECOVERING = 1


class Endpoint(Struct, frozen=True):
    name: str
    host: str
    port: int
    security_protocol: int  # 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL


class Broker(Struct, frozen=True):
    id: int
    epoch: int
    incarnation_id: Uuid
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, tuple[int, int]]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[Uuid, ...]
    cordoned_log_dirs: tuple[Uuid, ...] = ()

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.name == listener), None)

    def serves(self, directory: Uuid | None) -> bool:
        """Return whether a replica in this directory is online; old brokers register no directories."""
        if directory in (None, MIGRATING, UNASSIGNED) or not self.log_dirs:
            return directory != LOST
        return directory in self.log_dirs


class Partition(Struct, frozen=True):
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int  # NO_NODE if there is none
    leader_epoch: int
    partition_epoch: int
    directories: tuple[Uuid, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_NODE

    def directory(self, broker_id: int) -> Uuid | None:
        """Return the directory of a broker's replica, or None if it is unknown."""
        if broker_id not in self.replicas or len(self.directories) != len(self.replicas):
            return None
        return self.directories[self.replicas.index(broker_id)]

    def offline_replicas(self, live: Mapping[int, Broker]) -> list[int]:
        """Return the replicas on brokers that are not in `live`, or in a directory that the broker does not serve."""
        return [
            replica
            for replica in self.replicas
            if (broker := live.get(replica)) is None or not broker.serves(self.directory(replica))
        ]


class Topic(Struct, frozen=True):
    name: str
    id: Uuid
    partitions: tuple[Partition, ...]


NO_CONFIG: Mapping[str, str] = MappingProxyType({})


class Image(Struct, frozen=True):
    """Everything that a broker knows of the cluster at one moment. It is never changed, only replaced."""

    offset: int = -1  # offset of the last record that is included
    epoch: int = 0
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topic_names: Mapping[Uuid, str] = field(default_factory=dict)
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    controllers: Mapping[int, RegisterControllerRecord] = field(default_factory=dict)
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    acls: Mapping[Uuid, AccessControlEntryRecord] = field(default_factory=dict)
    scram: Mapping[tuple[str, int], UserScramCredentialRecord] = field(default_factory=dict)  # by user and mechanism

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        name = self.topic_names.get(Uuid(topic_id))
        return None if name is None else self.topics.get(name)

    def partition(self, topic: str, index: int) -> Partition | None:
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        return self.configs.get((resource_type, name), NO_CONFIG)

    def live_brokers(self) -> list[Broker]:
        return [broker for _, broker in sorted(self.brokers.items()) if not broker.fenced]
