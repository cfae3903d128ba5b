"""Options of fetching, leadership, and replication between brokers."""

from __future__ import annotations

from headrace.options.node.reasons import NO_THROTTLE, NO_TIERS
from headrace.options.table import LONG_MAX, Kind, Option, OptionTable, unused

REPLICATION_OPTIONS = OptionTable(
    Option(
        "replica.high.watermark.checkpoint.interval.ms",
        Kind.LONG,
        5000,
        "interval between checkpoints of high watermarks",
        at_least=1,
    ),
    Option(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        Kind.LONG,
        LONG_MAX,
        "bytes per second for moves between data directories",
    ),
    Option("fetch.max.bytes", Kind.INT, 57_671_680, "bytes of records in one response", at_least=1024),
    Option("max.incremental.fetch.session.cache.slots", Kind.INT, 1000, "fetch sessions that are cached", at_least=0),
    Option(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "whether a replica that lacks records may become leader if no other is left",
    ),
    Option("auto.leader.rebalance.enable", Kind.BOOLEAN, True, "whether leadership returns to the preferred replica"),
    Option("leader.imbalance.check.interval.seconds", Kind.LONG, 300, "interval between checks of that", at_least=1),
    Option("controlled.shutdown.enable", Kind.BOOLEAN, True, "whether leadership moves away before a broker stops"),
    Option(
        "replica.lag.time.max.ms",
        Kind.LONG,
        30000,
        "time without a fetch after which a follower is no longer in sync",
    ),
    Option(
        "replica.fetch.max.bytes",
        Kind.INT,
        1_048_576,
        "bytes of one partition that a follower requests",
        at_least=0,
    ),
    Option(
        "replica.fetch.response.max.bytes",
        Kind.INT,
        10_485_760,
        "bytes that a follower requests at once",
        at_least=0,
    ),
    Option("replica.fetch.min.bytes", Kind.INT, 1, "bytes for which a follower waits"),
    Option("replica.fetch.wait.max.ms", Kind.INT, 500, "how long a follower waits for them"),
    Option("replica.fetch.backoff.ms", Kind.INT, 1000, "pause of a follower after an error", at_least=0),
    Option("num.replica.fetchers", Kind.INT, 1, "connections by which a follower fetches from each broker", at_least=1),
    Option("replica.selector.class", Kind.STRING, None, "which replica a consumer reads from; null: the leader"),
    *unused(
        "links to other nodes wait for request.timeout.ms, and the system sizes their buffers",
        Option("replica.socket.timeout.ms", Kind.INT, 30000, "how long a follower waits for a response"),
        Option("replica.socket.receive.buffer.bytes", Kind.INT, 65536, "SO_RCVBUF of followers' sockets"),
    ),
    *unused(
        "an unclean election is made as soon as a replica becomes active",
        Option(
            "unclean.leader.election.interval.ms",
            Kind.LONG,
            300_000,
            "interval between checks for partitions without a leader",
            at_least=1,
        ),
    ),
    *unused(
        NO_THROTTLE,
        Option(
            "leader.replication.throttled.rate",
            Kind.LONG,
            LONG_MAX,
            "bytes per second that followers may fetch of throttled replicas",
        ),
        Option(
            "follower.replication.throttled.rate",
            Kind.LONG,
            LONG_MAX,
            "bytes per second that a follower may fetch of throttled replicas",
        ),
        Option("replication.quota.window.num", Kind.INT, 11, "samples for throttled replication", at_least=1),
        Option("replication.quota.window.size.seconds", Kind.INT, 1, "length of such a sample", at_least=1),
    ),
    *unused(
        "moves between directories are limited by replica.alter.log.dirs.io.max.bytes.per.second only",
        Option(
            "alter.log.dirs.replication.quota.window.num",
            Kind.INT,
            11,
            "samples for throttled moves between directories",
            at_least=1,
        ),
        Option(
            "alter.log.dirs.replication.quota.window.size.seconds", Kind.INT, 1, "length of such a sample", at_least=1
        ),
        Option(
            "num.replica.alter.log.dirs.threads", Kind.INT, None, "threads that move replicas between data directories"
        ),
    ),
    *unused(
        "parked requests are removed as soon as they get their response",
        Option(
            "fetch.purgatory.purge.interval.requests",
            Kind.INT,
            1000,
            "finished fetches after which the list of parked ones is purged",
        ),
        Option("producer.purgatory.purge.interval.requests", Kind.INT, 1000, "the same for produce"),
        Option("delete.records.purgatory.purge.interval.requests", Kind.INT, 1, "the same for deletions of records"),
    ),
    *unused(
        NO_TIERS,
        Option(
            "follower.fetch.last.tiered.offset.enable",
            Kind.BOOLEAN,
            False,
            "whether an empty follower skips what is in remote storage",
        ),
    ),
)
