"""Headrace's client, on Headrace and on Kafka."""

from __future__ import annotations

import sys

from testkit.kafka_peer import available

from tools.prove.commands import run
from tools.prove.registry import check, print_progress, require

TESTS_S_MAX = 1200.0
TEST_PROCESSES = 2


@check(
    "client-conformance",
    "The client behaves the same on a real Kafka and on Headrace: records in five codecs as librdkafka writes and "
    "reads them, 10,000 keys in the partitions that Java chooses, groups of five protocols while members and node "
    "are killed (every record is read, no committed offset decreases), transactions with offsets and zombies, "
    "nothing lost or duplicated when the node dies under load, full buffers and late deliveries reported in time",
)
def client_conformance() -> str:
    require(available())
    from tools.prove.client_conformance.suite import SERVERS, run_suite

    figures = run_suite(print_progress)
    return f"{len(figures)} results on {len(SERVERS)} servers: " + "; ".join(figures.values())


@check(
    "tests-on-kafka",
    "The tests of the client and of the sink, including every request of a commit, pass on a real Kafka as they "
    "do on a Headrace node",
)
def tests_on_kafka() -> str:
    require(available())
    done = run(
        [sys.executable, "-m", "pytest", "-m", "long", "-n", str(TEST_PROCESSES), "tests/client", "tests/pipelines"],
        timeout_s=TESTS_S_MAX,
        environment={"CI": "true"},
    )
    summary = done.stdout.strip().splitlines()[-1]
    assert "passed" in summary, f"no test was run: {summary}"
    return summary
