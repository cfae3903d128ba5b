"""Options that Kafka has removed, each with its replacement, because settings files outlive Kafka versions."""

from __future__ import annotations

_KRAFT = "there is no ZooKeeper any more: process.roles, node.id and controller.quorum.voters say who decides"
_QUOTA = (
    "today it is kafka-configs --alter --entity-type users --entity-default --add-config {}_byte_rate=…;"
    " this version limits no clients"
)
_ADDRESS = "write {}=PLAINTEXT://host:port"
_FORMAT = "records are always written in format v2, which every client since 0.11 reads; leave it out"
_VERSION = "what nodes of a cluster agree on is a feature today: kafka-features --upgrade --metadata; leave it out"

FORMER_OPTIONS = {
    "advertised.host.name": _ADDRESS.format("advertised.listeners"),
    "advertised.port": _ADDRESS.format("advertised.listeners"),
    "host.name": _ADDRESS.format("listeners"),
    "port": _ADDRESS.format("listeners"),
    "broker.id.generation.enable": "write node.id",
    "reserved.broker.max.id": "write node.id",
    "control.plane.listener.name": "write controller.listener.names",
    "controlled.shutdown.max.retries": "leave it out",
    "controlled.shutdown.retry.backoff.ms": "leave it out",
    "delegation.token.master.key": "it is delegation.token.secret.key today",
    "group.coordinator.new.enable": "leave it out",
    "inter.broker.protocol.version": _VERSION,
    "leader.imbalance.per.broker.percentage": "leave it out",
    "log.message.downconversion.enable": _FORMAT,
    "log.message.format.version": _FORMAT,
    "log.message.timestamp.difference.max.ms": (
        "write log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms"
    ),
    "metadata.log.segment.min.bytes": "write metadata.log.segment.bytes",
    "offsets.commit.required.acks": "a commit always waits for all replicas; leave it out",
    "quota.consumer.default": _QUOTA.format("consumer"),
    "quota.producer.default": _QUOTA.format("producer"),
}
_ZOOKEEPER = ("zookeeper.", "password.encoder.")


def replacement_of(name: str) -> str | None:
    """Return what to do instead of setting a removed option, or None for a name that Kafka never had."""
    if name.startswith(_ZOOKEEPER):
        return _KRAFT
    return FORMER_OPTIONS.get(name)
