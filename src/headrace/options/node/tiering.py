"""Options of tiered storage: segments in remote storage."""

from __future__ import annotations

from headrace.options.node.reasons import NO_TIERS
from headrace.options.table import LONG_MAX, Kind, Option, OptionTable, unused

TIERING_OPTIONS = OptionTable(
    Option(
        "remote.log.storage.system.enable",
        Kind.BOOLEAN,
        False,
        "whether segments are copied to remote storage",
        refused=NO_TIERS,
    ),
    *unused(
        NO_TIERS,
        Option("remote.log.storage.manager.class.name", Kind.STRING, None, "the class that copies segments"),
        Option("remote.log.storage.manager.class.path", Kind.STRING, None, "where it is"),
        Option("remote.log.storage.manager.impl.prefix", Kind.STRING, "rsm.config.", "the prefix of its own options"),
        Option(
            "remote.log.metadata.manager.class.name",
            Kind.STRING,
            "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
            "the class that stores where copies are",
        ),
        Option("remote.log.metadata.manager.class.path", Kind.STRING, None, "where it is"),
        Option("remote.log.metadata.manager.impl.prefix", Kind.STRING, "rlmm.config.", "the prefix of its own options"),
        Option(
            "remote.log.metadata.manager.listener.name",
            Kind.STRING,
            None,
            "the listener through which it connects to the broker",
        ),
        Option(
            "remote.log.metadata.custom.metadata.max.bytes",
            Kind.INT,
            128,
            "bytes of custom metadata per segment",
            at_least=0,
        ),
        Option("remote.log.metadata.topic.num.partitions", Kind.INT, 50, "partitions of __remote_log_metadata"),
        Option(
            "remote.log.metadata.topic.replication.factor",
            Kind.SHORT,
            3,
            "replicas of __remote_log_metadata",
            anyway=(1,),
        ),
        Option(
            "remote.log.metadata.topic.retention.ms",
            Kind.LONG,
            -1,
            "how long __remote_log_metadata is retained; -1: forever",
        ),
        Option(
            "remote.log.metadata.topic.min.isr",
            Kind.SHORT,
            2,
            "min.insync.replicas of __remote_log_metadata",
            anyway=(1,),
        ),
        Option(
            "remote.log.manager.task.interval.ms",
            Kind.LONG,
            30000,
            "how often segments are copied and removed",
            at_least=1,
        ),
        Option("remote.log.manager.task.retry.backoff.ms", Kind.LONG, 500, "pause before a retry", at_least=1),
        Option("remote.log.manager.task.retry.backoff.max.ms", Kind.LONG, 30000, "the longest such pause", at_least=1),
        Option("remote.log.manager.task.retry.jitter", Kind.DOUBLE, 0.2, "random part of it", at_least=0, at_most=0.5),
        Option(
            "remote.log.manager.thread.pool.size", Kind.INT, 2, "threads that check the progress of copies", at_least=1
        ),
        Option("remote.log.manager.copier.thread.pool.size", Kind.INT, 10, "threads that copy", at_least=1),
        Option(
            "remote.log.manager.expiration.thread.pool.size", Kind.INT, 10, "threads that remove old copies", at_least=1
        ),
        Option(
            "remote.log.manager.follower.thread.pool.size",
            Kind.INT,
            2,
            "threads of followers that check the progress of copies",
            at_least=1,
        ),
        Option(
            "remote.log.manager.copy.max.bytes.per.second",
            Kind.LONG,
            LONG_MAX,
            "bytes per second that may be copied out",
            at_least=1,
        ),
        Option("remote.log.manager.copy.quota.window.num", Kind.INT, 11, "samples for that limit", at_least=1),
        Option("remote.log.manager.copy.quota.window.size.seconds", Kind.INT, 1, "length of such a sample", at_least=1),
        Option(
            "remote.log.manager.fetch.max.bytes.per.second",
            Kind.LONG,
            LONG_MAX,
            "bytes per second that may be read back",
            at_least=1,
        ),
        Option("remote.log.manager.fetch.quota.window.num", Kind.INT, 11, "samples for that limit", at_least=1),
        Option(
            "remote.log.manager.fetch.quota.window.size.seconds", Kind.INT, 1, "length of such a sample", at_least=1
        ),
        Option("remote.log.reader.threads", Kind.INT, 10, "threads that read remote segments", at_least=1),
        Option("remote.log.reader.max.pending.tasks", Kind.INT, 100, "remote reads that may wait", at_least=1),
        Option(
            "remote.log.index.file.cache.total.size.bytes",
            Kind.LONG,
            1_073_741_824,
            "bytes of cached indexes of remote segments",
            at_least=1,
        ),
        Option(
            "remote.log.index.file.cache.ttl.ms",
            Kind.LONG,
            900_000,
            "how long they are cached after the last use",
            at_least=-1,
        ),
        Option("remote.fetch.max.wait.ms", Kind.INT, 500, "how long a fetch waits for remote storage", at_least=1),
        Option(
            "remote.list.offsets.request.timeout.ms",
            Kind.LONG,
            30000,
            "how long a look-up by time waits for remote storage",
            at_least=1,
        ),
        Option(
            "log.local.retention.ms",
            Kind.LONG,
            -2,
            "how long records are retained locally; -2: as log.retention.ms",
            at_least=-2,
        ),
        Option(
            "log.local.retention.bytes",
            Kind.LONG,
            -2,
            "bytes that are retained locally; -2: as log.retention.bytes",
            at_least=-2,
        ),
    ),
)
