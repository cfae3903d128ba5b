"""Producers of two clients that end one transaction right after another, on any server that speaks Kafka's protocol."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from testkit.kafka_peer import java

from tools.prove.registry import ROOT, print_progress
from tools.prove.transactions.reading import COMMITTED, create_topics, read_all, undecided

CLIENTS = ("java", "confluent")
PARTITIONS = 3
RACE_S_MAX = 900.0
DECIDED_S_MAX = 60.0
TURN_S = 0.1
READS_MAX = 3  # a read of Apache Kafka on a busy machine once differed from what was committed
SOURCE_JAVA = Path(__file__).with_name("Racer.java")


def race(bootstrap: str, client: str, classes: Path, producers: int, rounds: int) -> str:
    """Run the race and return a figure. Raise AssertionError if a producer gave up or the committed records differ."""
    topic = f"race-{client}"
    create_topics(bootstrap, (topic,), PARTITIONS)
    arguments = (bootstrap, topic, str(producers), str(rounds))
    command = (
        java("Racer", *arguments, classes=classes)
        if client == "java"
        else [sys.executable, "-m", "tools.prove.transactions.racer", *arguments]
    )
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RACE_S_MAX)
    took_s = time.monotonic() - started
    assert done.returncode == 0, f"{client}: a producer gave up: {done.stderr[-2000:]}"
    _check_records(bootstrap, topic, client, producers, rounds)
    return f"{client} {producers} x {rounds} rounds in {took_s:.0f} s"


def _check_records(bootstrap: str, topic: str, client: str, producers: int, rounds: int) -> None:
    places = [(topic, index) for index in range(PARTITIONS)]
    deadline = time.monotonic() + DECIDED_S_MAX
    while open_places := undecided(bootstrap, places):
        assert time.monotonic() < deadline, f"{client}: transactions stay open on {open_places}"
        time.sleep(TURN_S)
    expected = Counter(f"{client}-{number} keeps {turn}" for number in range(producers) for turn in range(rounds))
    for _ in range(READS_MAX):
        wrong = _differences(bootstrap, places, expected)
        if not wrong:
            return
        print_progress(f"{client}: the reader missed or repeated {len(wrong)} records; reading again")
    raise AssertionError(f"{client}: {READS_MAX} reads differ from what was committed, the last one in {wrong[:5]}")


def _differences(bootstrap: str, places: Sequence[tuple[str, int]], expected: Counter[str]) -> list[str]:
    """Return the records of all partitions that a new reader misses or sees too often."""
    wrong: list[str] = []
    for place, records in read_all(bootstrap, places, COMMITTED).items():
        found = Counter(value for _, value in records)
        wrong += (f"{place}: {value}" for value in ((expected - found) + (found - expected)).elements())
    return wrong
