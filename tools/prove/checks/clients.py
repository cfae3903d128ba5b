"""Records exchanged between all clients, in every codec."""

from __future__ import annotations

from headrace.testing.processes import NodeProcess
from tools.prove.clients import CLIENTS, CODECS, WriteOptions
from tools.prove.clients.matrix import Exchange
from tools.prove.clients.samples import FIRST_MS, STEP_MS
from tools.prove.registry import NotRun, check, print_progress

ACKNOWLEDGEMENTS = (("0", False), ("1", False), ("all", False))


@check(
    "clients-read-each-other",
    "kcat, confluent-kafka, aiokafka, kafka-python and Java's console tools read each other's records byte for "
    "byte, in all five codecs",
)
def clients_read_each_other() -> str:
    missing = {
        f"{client.name}: {reason}" for client in CLIENTS for codec in CODECS if (reason := client.missing(codec))
    }
    if missing:
        raise NotRun("; ".join(sorted(missing)))
    records = reads = 0
    with NodeProcess({"log.retention.ms": "-1"}) as node:  # the samples have timestamps of another year
        for codec in CODECS:
            exchange = Exchange(node.bootstrap, f"all-{codec}")
            for writer in CLIENTS:
                exchange.write(writer, WriteOptions(codec))
                for acks, idempotent in ACKNOWLEDGEMENTS:
                    exchange.write(writer, WriteOptions(codec, acks, idempotent))
            middle = len(exchange.written) // 2 + 1
            for reader in CLIENTS:
                exchange.read(reader)
                exchange.read(reader, middle)
            exchange.check()
            records += len(exchange.written)
            reads += exchange.reads
            print_progress(
                f"{codec}: {len(exchange.written)} records by {len(CLIENTS)} clients, {exchange.reads} reads"
            )
        by_time = _offsets_by_time(node.bootstrap)
        assert node.terminate() == 0, node.log_text()
    return f"{len(CLIENTS)} clients, {len(CODECS)} codecs, {records} records, {reads} reads, {by_time} offsets by time"


def _offsets_by_time(bootstrap: str) -> int:
    """Check that all clients find the same offsets by time, and return the number of lookups.

    The first writer of each topic gave its records known times, one of them out of order.
    """
    count = 0
    for client in CLIENTS:
        for timestamp, wanted in (
            (FIRST_MS - STEP_MS, 0),
            (FIRST_MS + 2 * STEP_MS, 2),
            (FIRST_MS + 3 * STEP_MS + 1, 4),
        ):
            found = client.offset_for_time(bootstrap, "all-none", timestamp)
            assert found == wanted, f"{client.name} found offset {found} for time {timestamp} instead of {wanted}"
            count += 1
    return count
