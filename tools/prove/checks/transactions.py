"""Transactions of real clients: under kills and pauses, and one right after another."""

from __future__ import annotations

import tempfile
from pathlib import Path

from headrace.testing.processes import NodeProcess
from tools.prove.registry import check, print_progress, random_seed, require, rounds_or
from tools.prove.transactions.copying import COPIERS, SETTINGS, Copying, compile_java, java_missing
from tools.prove.transactions.kills import rounds_of_kills
from tools.prove.transactions.racing import CLIENTS, Race, attempt_on_kafka, attempt_race, judge_race
from tools.prove.transactions.racing import SOURCE_JAVA as RACER_JAVA

COPIER_KILLS = 50
ROUNDS = 200
RACE_PRODUCERS, RACE_ROUNDS = 5, 200


@check(
    "exactly-once",
    "Programs of three clients that copy a topic are each killed 50 times, with aborts, zombies and kills of the "
    "node in between; under read_committed the copy has every record of the source once, in order",
)
def exactly_once() -> str:
    require(java_missing())
    kills, seed = rounds_or(COPIER_KILLS), random_seed()
    figures = []
    with NodeProcess(SETTINGS) as node, tempfile.TemporaryDirectory(prefix="copier-") as classes:
        compile_java(Path(classes))
        for client in COPIERS:
            figures.append(Copying(node, client, seed, Path(classes)).run(kills, print_progress))
            print_progress(figures[-1])
        assert node.terminate() == 0, node.log_text()[-2000:]
        wrong = [line for line in node.log_text().splitlines() if "Traceback" in line or " ERROR " in line]
    assert not wrong, f"seed {seed}: the node logged errors: {wrong[:3]}"
    return f"{'; '.join(figures)} (seed {seed})"


@check(
    "transactions-under-kills",
    "In 200 rounds of kill -9 and pauses of the node and of producers, during transactions over 6 partitions, no "
    "aborted record is read, no transaction is torn, lost or duplicated, and none stays open",
)
def transactions_under_kills() -> str:
    return rounds_of_kills(rounds_or(ROUNDS), random_seed(), print_progress)


@check(
    "end-transaction-race",
    "5 producers each of Java's client and confluent-kafka run 200 rounds of commit, begin, send and abort "
    "without pauses: none is fenced, and read_committed shows exactly what was committed; the same script runs on "
    "Apache Kafka as a reference, in up to three attempts",
)
def end_transaction_race() -> str:
    require(java_missing())
    rounds = rounds_or(RACE_ROUNDS)
    with tempfile.TemporaryDirectory(prefix="racer-") as classes:
        compile_java(Path(classes), RACER_JAVA)
        race = Race(RACE_PRODUCERS, rounds, Path(classes))
        headrace = {}
        with NodeProcess() as node:
            for client in CLIENTS:
                print_progress(f"{client} on Headrace")
                headrace[client] = attempt_race(node.bootstrap, client, race)
        kafka = {}
        for client in CLIENTS:
            print_progress(f"{client} on Kafka")
            kafka[client] = attempt_on_kafka(client, race)
    return f"{RACE_PRODUCERS} producers x {rounds} rounds; {judge_race(headrace, kafka)}"
