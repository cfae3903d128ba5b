"""The race of the check end-transaction-race: producers that end one transaction right after another.

Headrace must pass at the first attempt. Apache Kafka runs the same script as a reference: it shows that the script asks
for nothing that Kafka does not do. Kafka fails it now and then by itself, so it has several attempts, each on a new node.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testkit.kafka_peer import KafkaPeer, java

from headrace.testing.processes import ProcessFailed
from tools.prove.registry import ROOT
from tools.prove.transactions.reading import COMMITTED, create_topics, read_all, undecided

CLIENTS = ("java", "confluent")
KAFKA_ATTEMPTS_MAX = 3
PARTITIONS = 3
RACE_S_MAX = 900.0
DECIDED_S_MAX = 60.0
POLL_S = 0.1
FAILURE_CHARACTERS_MAX = 300
SOURCE_JAVA = Path(__file__).with_name("Racer.java")


@dataclass(frozen=True)
class Race:
    """The size of a race, and the folder with the compiled Java client."""

    producers: int
    rounds: int
    classes: Path


@dataclass(frozen=True)
class Attempt:
    """One run of a race with one client; `failure` is None if it passed."""

    seconds: float
    failure: str | None = None

    @property
    def passed(self) -> bool:
        return self.failure is None


# --- running


def attempt_race(bootstrap: str, client: str, race: Race) -> Attempt:
    """Run the race once on a server that has not run it with this client before."""
    from confluent_kafka import KafkaException

    started = time.monotonic()
    failure = None
    topic = f"race-{client}"
    try:
        create_topics(bootstrap, (topic,), PARTITIONS)
        _run_producers(bootstrap, topic, client, race)
        _check_records(bootstrap, topic, client, race)
    except (AssertionError, KafkaException, subprocess.TimeoutExpired) as error:
        failure = _one_line(error)
    return Attempt(time.monotonic() - started, failure)


def attempt_on_kafka(client: str, race: Race) -> list[Attempt]:
    """Run the race on new Kafka nodes until it passes, at most KAFKA_ATTEMPTS_MAX times."""
    attempts: list[Attempt] = []
    while len(attempts) < KAFKA_ATTEMPTS_MAX and not any(attempt.passed for attempt in attempts):
        started = time.monotonic()
        try:
            with KafkaPeer() as peer:
                attempts.append(attempt_race(peer.bootstrap, client, race))
        except ProcessFailed as error:
            attempts.append(Attempt(time.monotonic() - started, _one_line(error)))
    return attempts


def _run_producers(bootstrap: str, topic: str, client: str, race: Race) -> None:
    """Run the producers. Raise AssertionError with the errors of those that failed, as the client reports them."""
    arguments = (bootstrap, topic, str(race.producers), str(race.rounds))
    command = (
        java("Racer", *arguments, classes=race.classes)
        if client == "java"
        else [sys.executable, "-m", "tools.prove.transactions.racer", *arguments]
    )
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RACE_S_MAX)
    failures = [line for line in done.stdout.splitlines() if line.startswith(f"{client}-")]
    if failures:
        raise AssertionError(f"{failures[0]} ({len(failures)} of {race.producers} producers failed)")
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-FAILURE_CHARACTERS_MAX:]}"


def _check_records(bootstrap: str, topic: str, client: str, race: Race) -> None:
    """Check that read_committed shows each committed record once in each partition, and nothing else."""
    partitions = [(topic, index) for index in range(PARTITIONS)]
    deadline = time.monotonic() + DECIDED_S_MAX
    while open_partitions := undecided(bootstrap, partitions):
        assert time.monotonic() < deadline, f"transactions stay open on {open_partitions}"
        time.sleep(POLL_S)
    expected = Counter(
        f"{client}-{producer} keeps {number}" for producer in range(race.producers) for number in range(race.rounds)
    )
    missing: list[str] = []
    unexpected: list[str] = []
    for partition, records in read_all(bootstrap, partitions, COMMITTED).items():
        found = Counter(value for _, value in records)
        missing += (f"{partition}: {value}" for value in (expected - found).elements())
        unexpected += (f"{partition}: {value}" for value in (found - expected).elements())
    assert not missing and not unexpected, (
        f"read_committed misses {len(missing)} committed records {missing[:2]} "
        f"and shows {len(unexpected)} others {unexpected[:2]}"
    )


def _one_line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:FAILURE_CHARACTERS_MAX]


# --- judging


def judge_race(headrace: Mapping[str, Attempt], kafka: Mapping[str, Sequence[Attempt]]) -> str:
    """Return the outcome on both servers, by client.

    Raise AssertionError if Headrace failed, or if Kafka passed no attempt with a client: then the script itself is
    doubtful, because it asks for something that Kafka does not do either.
    """
    problems = [
        f"Headrace failed with {client}: {attempt.failure}"
        for client, attempt in headrace.items()
        if not attempt.passed
    ]
    problems += [
        f"the script is doubtful: Kafka passed none of {len(attempts)} attempts with {client}"
        for client, attempts in kafka.items()
        if not any(attempt.passed for attempt in attempts)
    ]
    outcomes = [
        f"Headrace: {client} passed in {attempt.seconds:.0f} s"
        for client, attempt in headrace.items()
        if attempt.passed
    ]
    outcomes += [f"Kafka: {client} {_describe(attempts)}" for client, attempts in kafka.items()]
    assert not problems, "; ".join([*problems, *outcomes])
    return "; ".join(outcomes)


def _describe(attempts: Sequence[Attempt]) -> str:
    return ", ".join(
        f"passed in attempt {number}" if attempt.passed else f"failed in attempt {number} with {attempt.failure}"
        for number, attempt in enumerate(attempts, 1)
    )
