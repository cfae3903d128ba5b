"""Comparison of one suite on a real Kafka and on Headrace with the same settings, one after the other."""

from __future__ import annotations

import json
from pathlib import Path

from testkit.kafka_peer import KafkaPeer, available

from headrace.testing.processes import NodeProcess
from tools.compat import kafka_python, librdkafka
from tools.compat.suite import NotHere, Suite, Verdict
from tools.prove.registry import WORK

SUITES: dict[str, Suite] = {suite.name: suite for suite in (kafka_python.SUITE, librdkafka.SUITE)}


def compare(suite: Suite) -> Verdict:
    reason = available()
    if reason is not None:
        raise NotHere(reason)
    suite.prepare()
    with KafkaPeer(suite.settings) as kafka:
        expected = suite.run(kafka.bootstrap, "Kafka")
    with NodeProcess(suite.settings) as node:
        got = suite.run(node.bootstrap, "Headrace")
        assert node.is_running, f"the node did not survive {suite.name}; its log: {node.log_text()[-2000:]}"
    verdict = Verdict(suite, expected, got)
    _kept(suite).write_text(json.dumps({"kafka": expected, "headrace": got}))
    return verdict


def last(suite: Suite) -> Verdict:
    """Return the last comparison made in this checkout. Raise NotHere if there is none."""
    try:
        kept = json.loads(_kept(suite).read_text())
    except FileNotFoundError:
        raise NotHere(f"{suite.name} was not run here yet") from None
    return Verdict(suite, kept["kafka"], kept["headrace"])


def _kept(suite: Suite) -> Path:
    return WORK / "compat" / f"{suite.name}.json"
