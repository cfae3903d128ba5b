"""Options of groups and of client-metrics subscriptions, with Kafka's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.options.table import INT_MAX, Kind, Option, OptionTable

GROUP_OPTIONS = OptionTable(
    Option(
        "consumer.session.timeout.ms",
        Kind.INT,
        45000,
        "time without a heartbeat after which a member is removed",
        at_least=1,
    ),
    Option("consumer.heartbeat.interval.ms", Kind.INT, 5000, "heartbeat interval of members", at_least=1),
    Option("consumer.assignment.interval.ms", Kind.INT, 1000, "minimum time between two assignments", at_least=0),
    Option(
        "share.session.timeout.ms",
        Kind.INT,
        45000,
        "time without a heartbeat after which a member is removed",
        at_least=1,
    ),
    Option("share.heartbeat.interval.ms", Kind.INT, 5000, "heartbeat interval of members", at_least=1),
    Option("share.record.lock.duration.ms", Kind.INT, 30000, "how long a record is acquired", at_least=1000),
    Option("share.delivery.count.limit", Kind.INT, 5, "attempts before a record is archived", at_least=2),
    Option("share.partition.max.record.locks", Kind.INT, 2000, "records in flight per share-partition", at_least=100),
    Option("share.auto.offset.reset", Kind.STRING, "latest", "latest, earliest, or by_duration:<ISO 8601>"),
    Option(
        "share.isolation.level",
        Kind.STRING,
        "read_uncommitted",
        "whether open transactions hold records back",
        one_of=("read_committed", "read_uncommitted"),
    ),
    Option("share.renew.acknowledge.enable", Kind.BOOLEAN, True, "whether acquisition can be renewed"),
    Option("share.assignment.interval.ms", Kind.INT, 1000, "minimum time between two assignments", at_least=0),
    Option(
        "streams.session.timeout.ms",
        Kind.INT,
        45000,
        "time without a heartbeat after which a member is removed",
        at_least=1,
    ),
    Option("streams.heartbeat.interval.ms", Kind.INT, 5000, "heartbeat interval of members", at_least=1),
    Option("streams.num.standby.replicas", Kind.INT, 0, "standby tasks per task", at_least=0),
    Option("streams.initial.rebalance.delay.ms", Kind.INT, 3000, "wait of an empty group", at_least=0),
    Option("streams.assignment.interval.ms", Kind.INT, 1000, "minimum time between two assignments", at_least=0),
)

# Options without a default in the broker's options; for the others it is the broker option `group.<name>`.
_ONLY_OF_GROUPS = frozenset({"share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable"})

# Group option -> broker options that bound it: (minimum, maximum).
GROUP_BOUNDS: Mapping[str, tuple[str | None, str | None]] = {
    "consumer.heartbeat.interval.ms": (
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    "consumer.assignment.interval.ms": (
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
    "share.heartbeat.interval.ms": ("group.share.min.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"),
    "share.session.timeout.ms": ("group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"),
    "share.record.lock.duration.ms": (
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ),
    "share.delivery.count.limit": ("group.share.min.delivery.count.limit", "group.share.max.delivery.count.limit"),
    "share.partition.max.record.locks": (
        "group.share.min.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
    ),
    "share.assignment.interval.ms": (
        "group.share.min.assignment.interval.ms",
        "group.share.max.assignment.interval.ms",
    ),
    "streams.heartbeat.interval.ms": (
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.max.heartbeat.interval.ms",
    ),
    "streams.session.timeout.ms": ("group.streams.min.session.timeout.ms", "group.streams.max.session.timeout.ms"),
    "streams.num.standby.replicas": (None, "group.streams.max.standby.replicas"),
    "streams.assignment.interval.ms": (
        "group.streams.min.assignment.interval.ms",
        "group.streams.max.assignment.interval.ms",
    ),
}

CLIENT_METRICS_OPTIONS = OptionTable(
    Option("interval.ms", Kind.INT, 300000, "how often clients push", at_least=-INT_MAX - 1),
    Option("match", Kind.LIST, [], "selector=pattern list; a client must match all of them"),
    Option("metrics", Kind.LIST, [], "prefixes of metric names; * for all"),
)
METRICS_INTERVAL_MS = (100, 3_600_000)
METRICS_SELECTORS = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)


def group_default_name(name: str) -> str | None:
    """Return the broker option that gives a group option its default, or None."""
    return None if name in _ONLY_OF_GROUPS else f"group.{name}"
