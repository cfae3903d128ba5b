"""Options of share groups (KIP-932) and their state."""

from __future__ import annotations

from headrace.options.node.reasons import NO_SHARE_GROUPS
from headrace.options.table import Kind, Option, OptionTable, unused

SHARE_GROUPS_OPTIONS = OptionTable(
    Option(
        "group.share.min.session.timeout.ms",
        Kind.INT,
        45000,
        "lower bound of a group's share.session.timeout.ms",
        at_least=1,
    ),
    Option("group.share.max.session.timeout.ms", Kind.INT, 60000, "upper bound of the same option", at_least=1),
    Option(
        "group.share.min.heartbeat.interval.ms",
        Kind.INT,
        5000,
        "lower bound of a group's share.heartbeat.interval.ms",
        at_least=1,
    ),
    Option("group.share.max.heartbeat.interval.ms", Kind.INT, 15000, "upper bound of the same option", at_least=1),
    Option(
        "group.share.min.assignment.interval.ms",
        Kind.INT,
        0,
        "lower bound of a group's share.assignment.interval.ms",
        at_least=0,
    ),
    Option("group.share.max.assignment.interval.ms", Kind.INT, 15000, "upper bound of the same option", at_least=0),
    Option(
        "group.share.min.record.lock.duration.ms",
        Kind.INT,
        15000,
        "lower bound of a group's share.record.lock.duration.ms",
        at_least=1000,
        at_most=30000,
    ),
    Option(
        "group.share.max.record.lock.duration.ms",
        Kind.INT,
        60000,
        "upper bound of the same option",
        at_least=30000,
        at_most=3_600_000,
    ),
    Option(
        "group.share.min.delivery.count.limit",
        Kind.INT,
        2,
        "lower bound of a group's share.delivery.count.limit",
        at_least=2,
        at_most=5,
    ),
    Option(
        "group.share.max.delivery.count.limit", Kind.INT, 10, "upper bound of the same option", at_least=5, at_most=25
    ),
    Option(
        "group.share.min.partition.max.record.locks",
        Kind.INT,
        100,
        "lower bound of a group's share.partition.max.record.locks",
        at_least=100,
        at_most=2000,
    ),
    Option(
        "group.share.max.partition.max.record.locks",
        Kind.INT,
        4000,
        "upper bound of the same option",
        at_least=2000,
        at_most=10000,
    ),
    *unused(
        NO_SHARE_GROUPS,
        Option(
            "group.share.session.timeout.ms",
            Kind.INT,
            45000,
            "time without a heartbeat after which a member is removed",
            at_least=1,
        ),
        Option("group.share.heartbeat.interval.ms", Kind.INT, 5000, "heartbeat interval of members", at_least=1),
        Option("group.share.max.size", Kind.INT, 200, "members of a share group", at_least=1, at_most=1000),
        Option("group.share.assignors", Kind.LIST, ["simple"], "how partitions are assigned"),
        Option(
            "group.share.assignment.interval.ms", Kind.INT, 1000, "minimum time between two assignments", at_least=0
        ),
        Option(
            "group.share.record.lock.duration.ms",
            Kind.INT,
            30000,
            "how long a record is acquired",
            at_least=1000,
            at_most=3_600_000,
        ),
        Option("group.share.delivery.count.limit", Kind.INT, 5, "attempts to deliver a record", at_least=2, at_most=10),
        Option(
            "group.share.partition.max.record.locks",
            Kind.INT,
            2000,
            "records in flight of one partition",
            at_least=100,
            at_most=10000,
        ),
        Option("group.share.max.share.sessions", Kind.INT, 2000, "share sessions of a broker", at_least=1),
        Option(
            "group.share.initialize.retry.interval.ms",
            Kind.INT,
            30000,
            "pause before share state is initialized again",
            at_least=1,
        ),
        Option(
            "group.share.persister.class.name",
            Kind.STRING,
            "org.apache.kafka.server.share.persister.DefaultStatePersister",
            "the class that stores share state",
        ),
        Option(
            "share.fetch.purgatory.purge.interval.requests",
            Kind.INT,
            1000,
            "finished fetches after which the list of parked ones is purged",
        ),
        Option(
            "share.coordinator.state.topic.num.partitions",
            Kind.INT,
            50,
            "partitions of __share_group_state",
            at_least=1,
        ),
        Option(
            "share.coordinator.state.topic.replication.factor",
            Kind.SHORT,
            3,
            "replicas of __share_group_state",
            at_least=1,
            anyway=(1,),
        ),
        Option(
            "share.coordinator.state.topic.min.isr",
            Kind.SHORT,
            2,
            "min.insync.replicas of __share_group_state",
            at_least=1,
            anyway=(1,),
        ),
        Option(
            "share.coordinator.state.topic.segment.bytes",
            Kind.INT,
            104_857_600,
            "segments of __share_group_state",
            at_least=1,
        ),
        Option(
            "share.coordinator.state.topic.compression.codec", Kind.INT, 0, "codec of __share_group_state, by number"
        ),
        Option(
            "share.coordinator.state.topic.prune.interval.ms",
            Kind.INT,
            300_000,
            "how often old share state is removed",
            at_least=1,
        ),
        Option(
            "share.coordinator.snapshot.update.records.per.snapshot",
            Kind.INT,
            500,
            "updates between two snapshots of share state",
            at_least=0,
            at_most=500,
        ),
        Option(
            "share.coordinator.cold.partition.snapshot.interval.ms",
            Kind.INT,
            300_000,
            "how often share state that does not change is written again",
            at_least=1,
        ),
        Option("share.coordinator.threads", Kind.INT, 1, "threads of the coordinator", at_least=1),
        Option(
            "share.coordinator.write.timeout.ms", Kind.INT, 5000, "how long a write of share state may take", at_least=1
        ),
        Option(
            "share.coordinator.append.linger.ms",
            Kind.INT,
            -1,
            "how long writes wait to be batched; -1: adaptive",
            at_least=-1,
        ),
        Option(
            "share.coordinator.cached.buffer.max.bytes",
            Kind.INT,
            1_048_588,
            "the largest write buffer that is reused",
            at_least=524_288,
        ),
        Option(
            "share.coordinator.load.buffer.size",
            Kind.INT,
            5_242_880,
            "bytes read at once when share state is loaded",
            at_least=1,
        ),
    ),
)
