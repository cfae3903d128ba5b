"""Kafka's command-line tools on us and on Kafka."""

from __future__ import annotations

from headrace.testing.peers import available
from tools.prove.registry import NotRun, check


@check(
    "kafka-tools-agree",
    "Kafka's command-line tools print on us what they print on Kafka, also over TLS and SASL",
)
def kafka_tools_agree() -> str:
    return _compare("kafka_tools")


@check(
    "group-tools-agree",
    "Kafka's consumer-groups tool describes, resets and deletes groups on us as on Kafka, and its formatters read __consumer_offsets alike",
)
def group_tools_agree() -> str:
    return _compare("group_steps")


def _compare(script: str) -> str:
    reason = available()
    if reason is not None:
        raise NotRun(reason)
    from tools.prove import group_steps, kafka_tools

    steps = {"kafka_tools": kafka_tools.SCRIPT, "group_steps": group_steps.SCRIPT}[script]
    found: list[str] = []
    calls = kafka_tools.both(steps, found.append)
    assert not found, f"{len(found)} of {calls} calls differ:\n" + "\n".join(found)
    return f"{calls} calls, no difference"
