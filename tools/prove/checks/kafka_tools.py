"""Kafka's command-line tools on us and on Kafka."""

from __future__ import annotations

from headrace.testing.peers import available
from tools.prove.registry import NotRun, check


@check(
    "kafka-tools-agree",
    "Kafka's command-line tools print on us what they print on Kafka, also over TLS and SASL",
)
def kafka_tools_agree() -> str:
    reason = available()
    if reason is not None:
        raise NotRun(reason)
    from tools.prove.kafka_tools import both

    found: list[str] = []
    calls = both(found.append)
    assert not found, f"{len(found)} of {calls} calls differ:\n" + "\n".join(found)
    return f"{calls} calls, no difference"
