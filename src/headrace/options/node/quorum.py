"""Options of the controllers: quorum, metadata log, snapshots, broker registrations."""

from __future__ import annotations

from headrace.options.node.reasons import OF_TESTS
from headrace.options.table import LONG_MAX, Kind, Option, OptionTable, unused

QUORUM_OPTIONS = OptionTable(
    Option("controller.quorum.voters", Kind.LIST, [], "the controllers of a static quorum, as id@host:port"),
    Option(
        "broker.heartbeat.interval.ms",
        Kind.INT,
        2000,
        "heartbeat interval of brokers",
        at_least=1,
    ),
    Option(
        "broker.session.timeout.ms",
        Kind.INT,
        9000,
        "time without a heartbeat after which a broker is fenced",
        at_least=1,
    ),
    Option("metadata.log.dir", Kind.STRING, None, "which data directory has the metadata log; else the first"),
    Option(
        "metadata.log.segment.bytes",
        Kind.INT,
        1_073_741_824,
        "size at which a segment of the metadata log is closed",
        at_least=8_388_608,
    ),
    Option(
        "metadata.log.segment.ms",
        Kind.LONG,
        604_800_000,
        "age at which a segment of the metadata log is closed",
        at_least=1,
    ),
    Option(
        "metadata.max.retention.bytes",
        Kind.LONG,
        104_857_600,
        "bytes of the metadata log and snapshots that are retained",
    ),
    Option("metadata.max.retention.ms", Kind.LONG, 604_800_000, "how long the metadata log and snapshots are retained"),
    Option(
        "metadata.log.max.record.bytes.between.snapshots",
        Kind.LONG,
        20_971_520,
        "new metadata after which a snapshot is taken",
        at_least=1,
    ),
    Option(
        "metadata.log.max.snapshot.interval.ms",
        Kind.LONG,
        3_600_000,
        "age of new metadata at which a snapshot is taken; 0: never",
        at_least=0,
    ),
    Option("controller.quorum.bootstrap.servers", Kind.LIST, [], "where brokers find the controllers, as host:port"),
    *unused(
        "a controller becomes a voter by the tools of Kafka or by controller.quorum.voters",
        Option(
            "controller.quorum.auto.join.enable", Kind.BOOLEAN, False, "whether a controller adds itself to the voters"
        ),
    ),
    Option("controller.quorum.election.timeout.ms", Kind.INT, 1000, "wait before a new election", at_least=0),
    Option(
        "controller.quorum.fetch.timeout.ms",
        Kind.INT,
        2000,
        "time without a fetch after which a leader resigns or a follower starts an election",
        at_least=0,
    ),
    Option(
        "controller.quorum.election.backoff.max.ms",
        Kind.INT,
        1000,
        "the longest pause between elections",
        at_least=0,
    ),
    Option(
        "controller.quorum.request.timeout.ms",
        Kind.INT,
        2000,
        "how long a request between controllers may take",
        at_least=0,
    ),
    Option("controller.quorum.retry.backoff.ms", Kind.INT, 20, "pause before a retry", at_least=0),
    Option("controller.quorum.fetch.max.bytes", Kind.INT, 1_048_576, "bytes of metadata in one response", at_least=1),
    Option(
        "controller.quorum.fetch.snapshot.max.bytes",
        Kind.INT,
        1_048_576,
        "bytes of a snapshot in one response",
        at_least=1,
    ),
    *unused(
        "each sync of the metadata log covers everything written since the last one",
        Option(
            "controller.quorum.append.linger.ms",
            Kind.INT,
            25,
            "how long metadata waits to be batched",
            at_least=0,
        ),
    ),
    Option("initial.broker.registration.timeout.ms", Kind.INT, 60000, "how long a starting broker tries to register"),
    *unused(
        "a start has no limit except initial.broker.registration.timeout.ms",
        Option("server.max.startup.time.ms", Kind.LONG, LONG_MAX, "how long a start may take", at_least=0),
    ),
    *unused(
        "no empty records are written to the metadata log",
        Option(
            "metadata.max.idle.interval.ms",
            Kind.INT,
            500,
            "how often an idle controller writes an empty record",
            at_least=0,
            anyway=(0,),
        ),
    ),
    *unused(
        "the times of the controller's requests are in /metrics",
        Option(
            "controller.performance.always.log.threshold.ms",
            Kind.LONG,
            2000,
            "controller events that take longer are logged",
            at_least=0,
        ),
        Option(
            "controller.performance.sample.period.ms",
            Kind.LONG,
            60000,
            "how often their times are logged",
            at_least=100,
        ),
    ),
    Option("unstable.api.versions.enable", Kind.BOOLEAN, False, "whether unfinished versions of APIs are offered"),
    *unused(
        OF_TESTS,
        Option(
            "internal.metadata.delete.delay.millis", Kind.LONG, 60000, "delay before old metadata files are removed"
        ),
        Option("internal.metadata.log.segment.bytes", Kind.INT, None, "size of a metadata segment"),
        Option("internal.metadata.max.batch.size.in.bytes", Kind.INT, 8_388_608, "size of a metadata batch"),
        Option(
            "unstable.feature.versions.enable",
            Kind.BOOLEAN,
            False,
            "whether unfinished versions of features are offered",
        ),
    ),
    Option(
        "sasl.mechanism.controller.protocol",
        Kind.STRING,
        "GSSAPI",
        "the SASL mechanism for connections to controllers",
    ),
)
