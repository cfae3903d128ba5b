"""Kafka's command-line tools on Headrace and on Kafka."""

from __future__ import annotations

from collections.abc import Callable

from testkit.kafka_peer import available

from tools.prove.registry import NotRun, check


@check(
    "kafka-tools-agree",
    "Kafka's command-line tools print the same for Headrace as for Kafka, also over TLS and SASL",
)
def kafka_tools_agree() -> str:
    return _compare("kafka_tools")


@check(
    "group-tools-agree",
    "Kafka's consumer-groups tool describes, resets and deletes groups on Headrace as on Kafka, and its "
    "formatters read __consumer_offsets alike",
)
def group_tools_agree() -> str:
    return _compare("group_steps")


@check(
    "transaction-tools-agree",
    "Kafka's transactions tool lists, describes, finds, aborts and terminates transactions on Headrace as on "
    "Kafka, its formatter reads __transaction_state alike, and headrace transactions reports the same",
)
def transaction_tools_agree() -> str:
    return _compare("transaction_steps")


def _compare(script: str) -> str:
    reason = available()
    if reason is not None:
        raise NotRun(reason)
    from tools.prove import group_steps, kafka_tools, transaction_steps

    make: dict[str, Callable[[], kafka_tools.Script]] = {
        "kafka_tools": lambda: kafka_tools.SCRIPT,
        "group_steps": lambda: group_steps.SCRIPT,
        "transaction_steps": transaction_steps.script,
    }
    settings = transaction_steps.SETTINGS if script == "transaction_steps" else {}
    found: list[str] = []
    calls = kafka_tools.both(make[script], found.append, settings)
    assert not found, f"{len(found)} of {calls} calls differ:\n" + "\n".join(found)
    return f"{calls} calls, no difference"
