"""Options of topics and their logs: topic defaults, directories, segments, retention, flushing, compaction."""

from __future__ import annotations

from headrace.options.node.reasons import PLUGINS
from headrace.options.table import LONG_MAX, Kind, Option, OptionTable, unused

DOUBLE_MAX = 1.7976931348623157e308

LOGS_OPTIONS = OptionTable(
    Option(
        "auto.create.topics.enable", Kind.BOOLEAN, True, "whether a metadata request for an unknown topic creates it"
    ),
    Option("delete.topic.enable", Kind.BOOLEAN, True, "whether topics may be deleted"),
    Option("num.partitions", Kind.INT, 1, "partitions of a topic created without a number of partitions", at_least=1),
    Option(
        "default.replication.factor",
        Kind.INT,
        1,
        "replicas of a topic created without a replication factor",
        at_least=1,
        at_most=32_767,
    ),
    Option(
        "min.insync.replicas",
        Kind.INT,
        1,
        "replicas that must have a record before a producer with acks=all gets its response",
        at_least=1,
    ),
    Option("message.max.bytes", Kind.INT, 1_048_588, "the largest batch of records, compressed", at_least=0),
    Option(
        "compression.type",
        Kind.STRING,
        "producer",
        "codec in which batches are stored; producer: as they were sent",
        one_of=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    Option(
        "compression.gzip.level",
        Kind.INT,
        -1,
        "level for compression.type=gzip; -1: the library's default",
        at_least=-1,
        at_most=9,
        never=(0,),
    ),
    Option("compression.lz4.level", Kind.INT, 9, "level for compression.type=lz4", at_least=1, at_most=17),
    Option("compression.zstd.level", Kind.INT, 3, "level for compression.type=zstd", at_least=-131_072, at_most=22),
    Option("log.dir", Kind.LIST, ["/tmp/kafka-logs"], "a data directory, if log.dirs is not set"),
    Option("log.dirs", Kind.LIST, None, "data directories"),
    Option("cordoned.log.dirs", Kind.LIST, [], "data directories that get no new partitions; *: all"),
    Option("log.segment.bytes", Kind.INT, 1_073_741_824, "size at which a segment is closed", at_least=1_048_576),
    Option("log.roll.ms", Kind.LONG, None, "age at which a segment is closed; else log.roll.hours", at_least=1),
    Option("log.roll.hours", Kind.INT, 168, "age at which a segment is closed, in hours", at_least=1),
    Option(
        "log.roll.jitter.ms",
        Kind.LONG,
        None,
        "random reduction of log.roll.ms, so that logs do not roll together; else log.roll.jitter.hours",
        at_least=0,
    ),
    Option("log.roll.jitter.hours", Kind.INT, 0, "the same in hours", at_least=0),
    Option(
        "log.retention.ms", Kind.LONG, None, "how long records are retained, -1: forever; else log.retention.minutes"
    ),
    Option(
        "log.retention.minutes", Kind.INT, None, "how long records are retained, in minutes; else log.retention.hours"
    ),
    Option("log.retention.hours", Kind.INT, 168, "how long records are retained, in hours"),
    Option("log.retention.bytes", Kind.LONG, -1, "bytes of a partition that are retained; -1: no limit"),
    Option(
        "log.retention.check.interval.ms", Kind.LONG, 300_000, "interval between checks for old segments", at_least=1
    ),
    Option(
        "log.cleanup.policy",
        Kind.LIST,
        ["delete"],
        "what happens to old records: delete, compact or both; empty: nothing",
        one_of=("compact", "delete"),
    ),
    Option(
        "log.index.size.max.bytes", Kind.INT, 10_485_760, "size of an index at which its segment is closed", at_least=4
    ),
    Option("log.index.interval.bytes", Kind.INT, 4096, "bytes of a log between two entries of its index", at_least=0),
    Option(
        "log.flush.interval.messages", Kind.LONG, LONG_MAX, "records after which a log is synced to disk", at_least=1
    ),
    Option(
        "log.flush.interval.ms",
        Kind.LONG,
        None,
        "age at which a record is synced to disk; else log.flush.scheduler.interval.ms",
        at_least=0,
    ),
    Option(
        "log.flush.scheduler.interval.ms", Kind.LONG, LONG_MAX, "interval between checks for logs to sync", at_least=1
    ),
    Option(
        "log.flush.offset.checkpoint.interval.ms",
        Kind.INT,
        60000,
        "interval between checkpoints of recovery points",
        at_least=0,
    ),
    Option(
        "log.flush.start.offset.checkpoint.interval.ms",
        Kind.INT,
        60000,
        "interval between checkpoints of log starts",
        at_least=0,
    ),
    Option(
        "log.segment.delete.delay.ms",
        Kind.LONG,
        60000,
        "time between deleting a segment from its log and removing the file",
        at_least=0,
    ),
    Option(
        "log.message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "timestamps of records: the producer's (CreateTime) or the broker's (LogAppendTime)",
        one_of=("CreateTime", "LogAppendTime"),
    ),
    Option(
        "log.message.timestamp.before.max.ms", Kind.LONG, LONG_MAX, "maximum age of a producer's timestamp", at_least=0
    ),
    Option(
        "log.message.timestamp.after.max.ms",
        Kind.LONG,
        3_600_000,
        "how far in the future a producer's timestamp may be",
        at_least=0,
    ),
    Option(
        "log.dir.failure.timeout.ms",
        Kind.LONG,
        30000,
        "the node stops if it cannot report a failed directory to the controller within this time",
        at_least=1,
    ),
    Option("log.initial.task.delay.ms", Kind.LONG, 30000, "delay of background tasks after the start", at_least=0),
    Option(
        "producer.id.expiration.ms",
        Kind.INT,
        86_400_000,
        "idle time after which the state of an idempotent producer is removed",
        at_least=1,
    ),
    Option(
        "producer.id.expiration.check.interval.ms",
        Kind.INT,
        600_000,
        "interval between checks for idle producers",
        at_least=1,
    ),
    *unused(
        "segments grow as they are written",
        Option("log.preallocate", Kind.BOOLEAN, False, "whether a segment gets its full size at once"),
    ),
    *unused(
        "logs are checked one after another, in a thread",
        Option(
            "num.recovery.threads.per.data.dir",
            Kind.INT,
            2,
            "threads that check the logs of a directory after a crash",
            at_least=1,
            anyway=(1,),
        ),
    ),
    *unused(
        PLUGINS,
        Option("create.topic.policy.class.name", Kind.CLASS, None, "a class that decides which topics may be created"),
        Option("alter.config.policy.class.name", Kind.CLASS, None, "a class that decides which options may be changed"),
    ),
    Option("log.cleaner.enable", Kind.BOOLEAN, True, "whether logs are compacted"),
    Option("log.cleaner.threads", Kind.INT, 1, "threads that compact logs", at_least=0),
    Option("log.cleaner.dedupe.buffer.size", Kind.LONG, 134_217_728, "memory for the keys of logs that are compacted"),
    Option(
        "log.cleaner.io.buffer.size",
        Kind.INT,
        524_288,
        "memory for reading and writing logs that are compacted",
        at_least=0,
    ),
    Option("log.cleaner.io.buffer.load.factor", Kind.DOUBLE, 0.9, "maximum load factor of the memory for keys"),
    Option(
        "log.cleaner.io.max.bytes.per.second",
        Kind.DOUBLE,
        DOUBLE_MAX,
        "bytes per second that compaction may read and write",
    ),
    Option("log.cleaner.backoff.ms", Kind.LONG, 15000, "pause when no log needs compaction", at_least=0),
    Option(
        "log.cleaner.min.cleanable.ratio",
        Kind.DOUBLE,
        0.5,
        "share of a log that must be new before it is compacted",
        at_least=0,
        at_most=1,
    ),
    Option(
        "log.cleaner.delete.retention.ms",
        Kind.LONG,
        86_400_000,
        "how long the tombstone of a deleted key is retained",
        at_least=0,
    ),
    Option("log.cleaner.min.compaction.lag.ms", Kind.LONG, 0, "age below which a record is not compacted", at_least=0),
    Option(
        "log.cleaner.max.compaction.lag.ms",
        Kind.LONG,
        LONG_MAX,
        "age above which a record must be compacted",
        at_least=1,
    ),
)
