"""Test suites of other projects: Headrace passes what Kafka passes on this machine."""

from __future__ import annotations

from tools.compat.comparison import SUITES, compare
from tools.compat.suite import SuiteUnavailable
from tools.prove.registry import NotRun, check


def _suite(name: str) -> str:
    try:
        verdict = compare(SUITES[name])
    except SuiteUnavailable as reason:
        raise NotRun(str(reason)) from reason
    assert not verdict.lost, f"{verdict.figure}; lost: {', '.join(verdict.lost)}"
    return verdict.figure


@check(
    "kafka-python-suite",
    "kafka-python's integration tests (admin, producer, consumer): all that a real Kafka passes",
)
def kafka_python_suite() -> str:
    return _suite("kafka-python")


@check("librdkafka-suite", "librdkafka's tests, including groups and transactions: all that a real Kafka passes")
def librdkafka_suite() -> str:
    return _suite("librdkafka")
