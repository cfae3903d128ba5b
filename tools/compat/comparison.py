"""Comparison of one suite on a real Kafka and on Headrace with the same settings, one after the other."""

from __future__ import annotations

import json
from pathlib import Path

from testkit.kafka_peer import KafkaPeer, available

from headrace.testing.processes import NodeProcess
from tools.compat import kafka_python, librdkafka
from tools.compat.suite import Suite, SuiteUnavailable, Verdict
from tools.prove.registry import WORK

SUITES: dict[str, Suite] = {suite.name: suite for suite in (kafka_python.SUITE, librdkafka.SUITE)}


def compare(suite: Suite) -> Verdict:
    """Run the suite on both servers, store the outcomes and return the verdict."""
    reason = available()
    if reason is not None:
        raise SuiteUnavailable(reason)
    suite.prepare()
    with KafkaPeer(suite.settings) as kafka:
        expected = suite.run(kafka.bootstrap, "Kafka")
    with NodeProcess(suite.settings) as node:
        actual = suite.run(node.bootstrap, "Headrace")
        assert node.is_running, f"the node exited during {suite.name}; its log ends with: {node.log_text()[-2000:]}"
    verdict = Verdict(suite, expected, actual)
    _stored(suite).write_text(json.dumps({"kafka": expected, "headrace": actual}))
    return verdict


def last(suite: Suite) -> Verdict:
    """Return the last comparison made in this checkout. Raise SuiteUnavailable if there is none."""
    try:
        stored = json.loads(_stored(suite).read_text())
    except FileNotFoundError:
        raise SuiteUnavailable(f"{suite.name} has not been run in this checkout") from None
    return Verdict(suite, stored["kafka"], stored["headrace"])


def _stored(suite: Suite) -> Path:
    return WORK / "compat" / f"{suite.name}.json"
