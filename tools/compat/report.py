"""Generates docs/compatibility.md."""

from __future__ import annotations

from collections.abc import Sequence

from testkit.kafka_peer import VERSION as KAFKA_VERSION

from tools.compat.suite import PASSED, Verdict
from tools.prove.registry import ROOT

PAGE = ROOT / "docs" / "compatibility.md"


def text(verdicts: Sequence[Verdict]) -> str:
    lines = [verdict.figure for verdict in verdicts]
    for verdict in verdicts:
        lines += [f"  {verdict.suite.name}: Kafka passes {test}, Headrace does not" for test in verdict.lost]
    return "\n".join(lines)


def publish(verdicts: Sequence[Verdict]) -> None:
    parts = [
        "# Compatibility",
        f"Test suites of others, run against Apache Kafka {KAFKA_VERSION} and against Headrace with the same settings on one machine.\n"
        "What Kafka itself fails there does not count.",
        "Made by `python -m tools.compat --publish`; `make prove` runs the same comparison.",
    ]
    for verdict in verdicts:
        parts.append(f"## {verdict.suite.name} {verdict.suite.version}")
        parts.append(f"{verdict.passed} of the {len(verdict.counted)} tests that Kafka passes.")
        rows = ["| test | Kafka | Headrace | |", "|---|---|---|---|"]
        for test, kafka in verdict.kafka.items():
            note = "lost" if kafka == PASSED and test in verdict.lost else ""
            rows.append(f"| {test} | {kafka} | {verdict.headrace.get(test, 'did not run')} | {note} |")
        parts.append("\n".join(rows))
    PAGE.write_text("\n\n".join(parts) + "\n")
