"""Options of transactions and client quotas."""

from __future__ import annotations

from headrace.options.node.reasons import NO_QUOTAS, OWN_LOG, PLUGINS
from headrace.options.table import Kind, Option, OptionTable, unused

TRANSACTIONS_OPTIONS = OptionTable(
    Option("transaction.state.log.num.partitions", Kind.INT, 50, "partitions of __transaction_state", at_least=1),
    Option(
        "transaction.state.log.replication.factor",
        Kind.SHORT,
        3,
        "replicas of __transaction_state",
        at_least=1,
    ),
    Option(
        "transaction.state.log.min.isr",
        Kind.INT,
        2,
        "min.insync.replicas of __transaction_state",
        at_least=1,
    ),
    Option("transaction.state.log.segment.bytes", Kind.INT, 104_857_600, "segments of __transaction_state", at_least=1),
    Option(
        "transaction.max.timeout.ms",
        Kind.INT,
        900_000,
        "the longest transaction timeout that a producer may request",
        at_least=1,
    ),
    Option(
        "transactional.id.expiration.ms",
        Kind.INT,
        604_800_000,
        "idle time after which a transactional id is removed",
        at_least=1,
    ),
    Option(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Kind.INT,
        10000,
        "interval between checks for timed-out transactions",
        at_least=1,
    ),
    Option(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Kind.INT,
        3_600_000,
        "interval between checks for idle transactional ids",
        at_least=1,
    ),
    Option(
        "transaction.partition.verification.enable",
        Kind.BOOLEAN,
        True,
        "whether a partition must have been added to a transaction before it is written",
    ),
    Option(
        "transaction.two.phase.commit.enable",
        Kind.BOOLEAN,
        False,
        "whether transactions may take part in a two-phase commit",
    ),
    Option(
        "add.partitions.to.txn.retry.backoff.ms",
        Kind.INT,
        20,
        "pause before a partition is added to a busy transaction again",
        at_least=1,
    ),
    Option("add.partitions.to.txn.retry.backoff.max.ms", Kind.INT, 100, "how long that is retried", at_least=0),
    *unused(
        OWN_LOG,
        Option(
            "transaction.state.log.load.buffer.size",
            Kind.INT,
            5_242_880,
            "bytes read at once when transactions are loaded",
            at_least=1,
        ),
    ),
    *unused(
        NO_QUOTAS,
        Option("quota.window.num", Kind.INT, 11, "samples for client quotas", at_least=1),
        Option("quota.window.size.seconds", Kind.INT, 1, "length of such a sample", at_least=1),
        Option("controller.quota.window.num", Kind.INT, 11, "samples for the quota on changes of topics", at_least=1),
        Option("controller.quota.window.size.seconds", Kind.INT, 1, "length of such a sample", at_least=1),
    ),
    *unused(
        PLUGINS,
        Option("client.quota.callback.class", Kind.CLASS, None, "a class that decides how much each client may use"),
    ),
)
