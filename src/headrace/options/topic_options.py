"""All topic options, with the broker options that give their defaults. The names and defaults are Kafka's."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.options.table import LONG_MAX, Kind, Option, OptionTable, Value

TOPIC_OPTIONS = OptionTable(
    Option(
        "cleanup.policy",
        Kind.LIST,
        ["delete"],
        "delete, compact, both, or empty = keep everything",
        one_of=("compact", "delete"),
    ),
    Option(
        "compression.type",
        Kind.STRING,
        "producer",
        "producer (keep), uncompressed, gzip, snappy, lz4, zstd; broker recompresses if different",
        one_of=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    Option("compression.gzip.level", Kind.INT, -1, "1-9 or -1", at_least=-1, at_most=9),
    Option("compression.lz4.level", Kind.INT, 9, "1-17", at_least=1, at_most=17),
    Option("compression.zstd.level", Kind.INT, 3, "-131072..22", at_least=-131072, at_most=22),
    Option(
        "delete.retention.ms",
        Kind.LONG,
        86400000,
        "how long tombstones and txn markers stay readable after the cleaner first keeps them",
        at_least=0,
    ),
    Option(
        "file.delete.delay.ms", Kind.LONG, 60000, "wait between renaming a segment .deleted and removing it", at_least=0
    ),
    Option("flush.messages", Kind.LONG, LONG_MAX, "number of messages after which the log is synced", at_least=1),
    Option("flush.ms", Kind.LONG, LONG_MAX, "time after which the log is synced", at_least=0),
    Option(
        "follower.replication.throttled.replicas",
        Kind.LIST,
        [],
        "partition:broker list (or *) throttled when fetching as follower",
    ),
    Option("index.interval.bytes", Kind.INT, 4096, "distance between sparse index entries", at_least=0),
    Option("leader.replication.throttled.replicas", Kind.LIST, [], "the same on the leader side"),
    Option(
        "local.retention.bytes", Kind.LONG, -2, "bytes retained locally when tiered; -2 = retention.bytes", at_least=-2
    ),
    Option("local.retention.ms", Kind.LONG, -2, "time retained locally when tiered; -2 = retention.ms", at_least=-2),
    Option("max.compaction.lag.ms", Kind.LONG, LONG_MAX, "force compaction after this age", at_least=1),
    Option(
        "max.message.bytes",
        Kind.INT,
        1048588,
        "largest batch (compressed size, incl. 12-byte log overhead)",
        at_least=0,
    ),
    Option(
        "message.timestamp.after.max.ms", Kind.LONG, 3600000, "how far in the future a CreateTime may be", at_least=0
    ),
    Option("message.timestamp.before.max.ms", Kind.LONG, LONG_MAX, "how far in the past", at_least=0),
    Option(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "CreateTime or LogAppendTime",
        one_of=("CreateTime", "LogAppendTime"),
    ),
    Option(
        "min.cleanable.dirty.ratio", Kind.DOUBLE, 0.5, "dirty share before the cleaner starts", at_least=0, at_most=1
    ),
    Option("min.compaction.lag.ms", Kind.LONG, 0, "records younger than this are not compacted", at_least=0),
    Option("min.insync.replicas", Kind.INT, 1, "needed ISR for acks=all, for HW progress and ELR", at_least=1),
    Option("preallocate", Kind.BOOLEAN, False, "create segments at full size"),
    Option("remote.log.copy.disable", Kind.BOOLEAN, False, "stop copying; remote becomes read-only"),
    Option(
        "remote.log.delete.on.disable", Kind.BOOLEAN, False, "delete remote data when remote storage is switched off"
    ),
    Option("remote.storage.enable", Kind.BOOLEAN, False, "tier this topic"),
    Option("retention.bytes", Kind.LONG, -1, "per partition; -1 no limit"),
    Option("retention.ms", Kind.LONG, 604800000, "-1 no limit", at_least=-1),
    Option("segment.bytes", Kind.INT, 1073741824, "segment size", at_least=1048576),
    Option("segment.index.bytes", Kind.INT, 10485760, "max size of each index file", at_least=4),
    Option("segment.jitter.ms", Kind.LONG, 0, "random reduction of segment.ms", at_least=0),
    Option("segment.ms", Kind.LONG, 604800000, "max segment age", at_least=1),
    Option("unclean.leader.election.enable", Kind.BOOLEAN, False, "allow electing out-of-sync replicas"),
    Option("internal.segment.bytes", Kind.INT, None, "internal/testing override of segment.bytes"),
)

# Options for Kafka's own tests: shown only if they are set.
INTERNAL_TOPIC_OPTIONS = frozenset({"internal.segment.bytes"})

# Topic option -> broker options that give its default, strongest first, with the factor to the topic's unit.
BROKER_DEFAULTS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "compression.type": (("compression.type", 1),),
    "compression.gzip.level": (("compression.gzip.level", 1),),
    "compression.lz4.level": (("compression.lz4.level", 1),),
    "compression.zstd.level": (("compression.zstd.level", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "preallocate": (("log.preallocate", 1),),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", 3_600_000)),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", 3_600_000)),
    "unclean.leader.election.enable": (("unclean.leader.election.enable", 1),),
}


def topic_defaults(broker: Mapping[str, Value]) -> dict[str, Value]:
    """Return the options of a topic that sets none, on a broker with these settings."""
    values: dict[str, Value] = {}
    for name, option in TOPIC_OPTIONS.items():
        values[name] = option.default
        for source, factor in BROKER_DEFAULTS.get(name, ()):
            value = broker.get(source)
            if value is not None:
                values[name] = value * factor if isinstance(value, int) and factor > 1 else value
                break
    return values
