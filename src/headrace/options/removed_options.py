"""Options that Kafka has removed, each with its replacement, because settings files outlive Kafka versions."""

from __future__ import annotations

_KRAFT = "ZooKeeper is no longer used: process.roles, node.id and controller.quorum.voters define the controllers"
_QUOTA = (
    "use kafka-configs --alter --entity-type users --entity-default --add-config {}_byte_rate=…;"
    " this version does not enforce client quotas"
)
_ADDRESS = "use {}=PLAINTEXT://host:port"
_FORMAT = "records are always written in format v2, which all clients since 0.11 read; remove the option"
_VERSION = (
    "the version of a cluster is a feature level now: use kafka-features --upgrade --metadata and remove the option"
)

FORMER_OPTIONS = {
    "advertised.host.name": _ADDRESS.format("advertised.listeners"),
    "advertised.port": _ADDRESS.format("advertised.listeners"),
    "host.name": _ADDRESS.format("listeners"),
    "port": _ADDRESS.format("listeners"),
    "broker.id.generation.enable": "use node.id",
    "reserved.broker.max.id": "use node.id",
    "control.plane.listener.name": "use controller.listener.names",
    "controlled.shutdown.max.retries": "remove the option",
    "controlled.shutdown.retry.backoff.ms": "remove the option",
    "delegation.token.master.key": "use delegation.token.secret.key",
    "group.coordinator.new.enable": "remove the option",
    "inter.broker.protocol.version": _VERSION,
    "leader.imbalance.per.broker.percentage": "remove the option",
    "log.message.downconversion.enable": _FORMAT,
    "log.message.format.version": _FORMAT,
    "log.message.timestamp.difference.max.ms": (
        "use log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms"
    ),
    "metadata.log.segment.min.bytes": "use metadata.log.segment.bytes",
    "offsets.commit.required.acks": "a commit always waits for all in-sync replicas; remove the option",
    "quota.consumer.default": _QUOTA.format("consumer"),
    "quota.producer.default": _QUOTA.format("producer"),
}
_ZOOKEEPER = ("zookeeper.", "password.encoder.")


def replacement_of(name: str) -> str | None:
    """Return what to do instead of setting a removed option, or None for a name that Kafka never had."""
    if name.startswith(_ZOOKEEPER):
        return _KRAFT
    return FORMER_OPTIONS.get(name)
