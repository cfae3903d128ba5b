"""Data directories: kill -9, compaction, retention, dump-log, and Headrace and Kafka taking turns."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from testkit import kafka_peer as peers

from headrace.testing.processes import NodeProcess
from tools.prove.clients import CLIENTS, CODECS, WriteOptions
from tools.prove.clients.samples import FIRST_MS, Sample
from tools.prove.registry import check, print_progress, random_seed, require, rounds_or
from tools.prove.storage.dump_log import dump_everything
from tools.prove.storage.kill_nine import rounds_of_killing

KILL_ROUNDS = 100
COMPACTED_RECORDS, COMPACTED_KEYS, COMPACTION_KILLS = 10_000_000, 1_000_000, 5
COMPARED_RECORDS, COMPARED_KEYS = 20_000, 1_500
SWAP_TURNS = 5
DUMP_SETTINGS = {"num.partitions": "2", "log.segment.bytes": "1048576", "log.index.interval.bytes": "4096"}
BULK_RECORDS, BULK_BYTES = 700, 4000
RESTARTS = 4  # after a kill and after a clean stop in turn


@check(
    "kill-nine",
    "In 100 rounds of kill -9 under load, no acknowledged record is lost, no CRC is wrong, and no offset or "
    "producer id is assigned twice",
)
def kill_nine() -> str:
    return rounds_of_killing(rounds_or(KILL_ROUNDS), random_seed(), print_progress)


@check(
    "compaction",
    "100 messages with one key become one; 10 million keyed records are reduced to exactly the last value of "
    "every key, during writes and kill -9; Kafka opens the compacted directory, and keeps the same records when "
    "it compacts the same topic",
)
def compaction() -> str:
    require(peers.available())
    from tools.prove.storage.compaction import check_compaction, same_records_as_kafka

    seed = random.randrange(10**6)
    with tempfile.TemporaryDirectory(prefix="headrace-compaction-") as directory:
        same = same_records_as_kafka(Path(directory) / "same", COMPARED_RECORDS, COMPARED_KEYS, seed)
        keyed = Path(directory) / "keyed"
        return f"{check_compaction(keyed, COMPACTED_RECORDS, COMPACTED_KEYS, COMPACTION_KILLS, seed)}; {same}"


@check(
    "retention-and-reload",
    "Retention by time, size and log start, segment rolling and changed options take effect on a running node, as "
    "observed with Kafka's tools",
)
def retention_and_reload() -> str:
    require(peers.available())
    from tools.prove.storage.retention import check_retention

    with tempfile.TemporaryDirectory(prefix="headrace-retention-") as directory:
        return check_retention(Path(directory))


@check(
    "swap-the-binary",
    "Kafka opens a directory written by Headrace, Headrace opens it again after Kafka has written to it, and so "
    "on: every record, config and offset is present, and each ends the transactions that the other left open",
)
def swap_the_binary() -> str:
    require(peers.available())
    from tools.prove.storage.swapping import swap

    return swap(SWAP_TURNS, random.randrange(10**6))


@check(
    "dump-log-finds-nothing-wrong",
    "Kafka's own dump-log reads every file that Headrace writes (deep iteration, index checks, metadata decoder) "
    "and finds no error",
)
def dump_log_finds_nothing_wrong() -> str:
    require(peers.available())
    with NodeProcess(DUMP_SETTINGS) as node:
        for start in range(RESTARTS):
            _write(node.bootstrap, start)
            if start % 2:
                assert node.terminate() == 0, node.log_text()[-2000:]
            else:
                node.kill()
            node.start()
        _write(node.bootstrap, RESTARTS)
        assert node.terminate() == 0, node.log_text()[-2000:]
        dump = dump_everything(node.data_dir)
    assert not dump.problems, f"dump-log reports {len(dump.problems)} problems: " + "; ".join(dump.problems[:10])
    assert len(dump.epochs) > 1 and dump.producers > 0, "too little was written for the check to mean anything"
    return f"{dump.files} files, {dump.batches} batches, {dump.records} records, {dump.producers} producer entries, 0 problems"


def _write(bootstrap: str, start: int) -> None:
    """Write with all available clients in all codecs, enough for several segments after each start of the node."""
    random = Random(start)
    for codec in CODECS:
        for client in CLIENTS:
            # Java takes seconds to start: once per start of the node is enough.
            if client.missing(codec) is None and (client.name != "java" or codec == CODECS[start % len(CODECS)]):
                client.write(bootstrap, f"mixed-{codec}", client.samples(), WriteOptions(codec))
        # librdkafka makes large batches, aiokafka small ones: segments of one batch, and indexes with many entries.
        for client in CLIENTS[:2]:
            client.write(
                bootstrap, f"bulk-{client.name}", _bulk(random), WriteOptions(codec, idempotent=start % 2 == 0)
            )
    print_progress(f"start {start + 1}: records written")


def _bulk(random: Random) -> Sequence[Sample]:
    return [Sample(b"key", random.randbytes(BULK_BYTES), (), FIRST_MS + number) for number in range(BULK_RECORDS)]
