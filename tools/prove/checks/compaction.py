"""Compacted logs keep the last value of every key."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from testkit.kafka_peer import available

from tools.prove.registry import NotRun, check

RECORDS = 10_000_000
KEYS = 1_000_000
KILLS = 5
COMPARED_RECORDS = 20_000
COMPARED_KEYS = 1_500


@check(
    "compaction",
    "100 messages with one key become one; 10 million keyed records are reduced to exactly the last value of "
    "every key, during writes and kill -9; Kafka opens the compacted directory, and keeps the same records when "
    "it compacts the same topic",
)
def compaction() -> str:
    reason = available()
    if reason is not None:
        raise NotRun(reason)
    from tools.prove.compaction import prove, same_records_as_kafka

    seed = random.randrange(10**6)
    with tempfile.TemporaryDirectory(prefix="headrace-compaction-") as directory:
        same = same_records_as_kafka(Path(directory) / "same", COMPARED_RECORDS, COMPARED_KEYS, seed)
        return f"{prove(Path(directory) / 'keyed', RECORDS, KEYS, KILLS, seed)}; {same}"
