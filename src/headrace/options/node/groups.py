"""Options of consumer groups (classic and KIP-848), streams groups and their offsets."""

from __future__ import annotations

from headrace.options.node.reasons import NO_STREAMS_GROUPS, ONE_LOOP, OWN_LOG
from headrace.options.table import INT_MAX, Kind, Option, OptionTable, unused

GROUPS_OPTIONS = OptionTable(
    Option(
        "group.consumer.min.session.timeout.ms",
        Kind.INT,
        45000,
        "lower bound of a group's consumer.session.timeout.ms",
        at_least=1,
    ),
    Option("group.consumer.max.session.timeout.ms", Kind.INT, 60000, "upper bound of the same option", at_least=1),
    Option(
        "group.consumer.min.heartbeat.interval.ms",
        Kind.INT,
        5000,
        "lower bound of a group's consumer.heartbeat.interval.ms",
        at_least=1,
    ),
    Option("group.consumer.max.heartbeat.interval.ms", Kind.INT, 15000, "upper bound of the same option", at_least=1),
    Option(
        "group.consumer.min.assignment.interval.ms",
        Kind.INT,
        0,
        "lower bound of a group's consumer.assignment.interval.ms",
        at_least=0,
    ),
    Option("group.consumer.max.assignment.interval.ms", Kind.INT, 15000, "upper bound of the same option", at_least=0),
    Option(
        "group.streams.min.session.timeout.ms",
        Kind.INT,
        45000,
        "lower bound of a group's streams.session.timeout.ms",
        at_least=1,
    ),
    Option("group.streams.max.session.timeout.ms", Kind.INT, 60000, "upper bound of the same option", at_least=1),
    Option(
        "group.streams.min.heartbeat.interval.ms",
        Kind.INT,
        5000,
        "lower bound of a group's streams.heartbeat.interval.ms",
        at_least=1,
    ),
    Option("group.streams.max.heartbeat.interval.ms", Kind.INT, 15000, "upper bound of the same option", at_least=1),
    Option(
        "group.streams.min.assignment.interval.ms",
        Kind.INT,
        0,
        "lower bound of a group's streams.assignment.interval.ms",
        at_least=0,
    ),
    Option("group.streams.max.assignment.interval.ms", Kind.INT, 15000, "upper bound of the same option", at_least=0),
    Option(
        "group.streams.max.standby.replicas",
        Kind.INT,
        2,
        "upper bound of a group's streams.num.standby.replicas",
        at_least=0,
    ),
    Option(
        "group.consumer.session.timeout.ms",
        Kind.INT,
        45000,
        "time without a heartbeat after which a member of a consumer group is removed",
        at_least=1,
    ),
    Option("group.consumer.heartbeat.interval.ms", Kind.INT, 5000, "heartbeat interval of members", at_least=1),
    Option("group.consumer.max.size", Kind.INT, INT_MAX, "members of a consumer group", at_least=1),
    Option(
        "group.consumer.migration.policy",
        Kind.STRING,
        "bidirectional",
        "directions in which groups may migrate between the classic and the consumer protocol",
        one_of=("bidirectional", "upgrade", "downgrade", "disabled"),
    ),
    Option(
        "group.consumer.assignors",
        Kind.LIST,
        ["uniform", "range"],
        "assignors that members may request; the first is the default",
        one_of=("uniform", "range"),
    ),
    Option(
        "group.consumer.assignment.interval.ms",
        Kind.INT,
        1000,
        "minimum time between two assignments of a consumer group",
        at_least=0,
    ),
    Option(
        "group.consumer.regex.refresh.interval.ms",
        Kind.INT,
        600_000,
        "interval at which patterns of topic names are resolved again",
        at_least=10000,
    ),
    Option("group.initial.rebalance.delay.ms", Kind.INT, 3000, "how long a new classic group waits for more members"),
    Option("group.min.session.timeout.ms", Kind.INT, 6000, "lower bound of a classic member's session"),
    Option("group.max.session.timeout.ms", Kind.INT, 1_800_000, "upper bound of the same option"),
    Option("group.max.size", Kind.INT, INT_MAX, "members of a classic group", at_least=1),
    Option("offsets.topic.num.partitions", Kind.INT, 50, "partitions of __consumer_offsets", at_least=1),
    Option(
        "offsets.topic.replication.factor", Kind.SHORT, 3, "replicas of __consumer_offsets", at_least=1, anyway=(1,)
    ),
    Option("offsets.topic.segment.bytes", Kind.INT, 104_857_600, "segments of __consumer_offsets", at_least=1),
    Option(
        "offsets.retention.minutes",
        Kind.INT,
        10080,
        "how long the offsets of a group without members are retained",
        at_least=1,
    ),
    Option(
        "offsets.retention.check.interval.ms",
        Kind.LONG,
        600_000,
        "interval between checks for old offsets",
        at_least=1,
    ),
    Option("offset.metadata.max.bytes", Kind.INT, 4096, "the longest metadata of a committed offset"),
    Option(
        "group.coordinator.rebalance.protocols",
        Kind.LIST,
        ["classic", "consumer", "streams"],
        "protocols that groups may use; classic must be one of them",
        one_of=("consumer", "classic", "share", "streams"),
    ),
    *unused(
        ONE_LOOP,
        Option("group.coordinator.threads", Kind.INT, 4, "threads of the coordinator", at_least=1),
        Option(
            "group.coordinator.background.threads", Kind.INT, 2, "its threads for patterns of topic names", at_least=1
        ),
        Option(
            "group.coordinator.append.linger.ms",
            Kind.INT,
            -1,
            "how long writes wait to be batched; -1: adaptive",
            at_least=-1,
        ),
        Option(
            "group.coordinator.cached.buffer.max.bytes",
            Kind.INT,
            1_048_588,
            "the largest write buffer that is reused",
            at_least=524_288,
        ),
    ),
    *unused(
        "a commit waits until its records are replicated or its coordinator moves",
        Option("offsets.commit.timeout.ms", Kind.INT, 5000, "how long a commit may take", at_least=1),
    ),
    *unused(
        OWN_LOG,
        Option("offsets.topic.compression.codec", Kind.INT, 0, "codec of __consumer_offsets, by number"),
        Option(
            "offsets.load.buffer.size", Kind.INT, 5_242_880, "bytes read at once when offsets are loaded", at_least=1
        ),
    ),
    *unused(
        NO_STREAMS_GROUPS,
        Option(
            "group.streams.session.timeout.ms",
            Kind.INT,
            45000,
            "time without a heartbeat after which a member of a streams group is removed",
            at_least=1,
        ),
        Option("group.streams.heartbeat.interval.ms", Kind.INT, 5000, "heartbeat interval of members", at_least=1),
        Option("group.streams.max.size", Kind.INT, INT_MAX, "members of a streams group", at_least=1),
        Option("group.streams.num.standby.replicas", Kind.INT, 0, "standby copies of each task", at_least=0),
        Option(
            "group.streams.initial.rebalance.delay.ms",
            Kind.INT,
            3000,
            "how long a new streams group waits for more members",
            at_least=0,
        ),
        Option(
            "group.streams.assignment.interval.ms",
            Kind.INT,
            1000,
            "minimum time between two assignments of a streams group",
            at_least=0,
        ),
    ),
)
