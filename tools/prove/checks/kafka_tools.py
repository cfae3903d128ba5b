"""Kafka's command-line tools on Headrace and on Kafka."""

from __future__ import annotations

from collections.abc import Callable

from testkit.kafka_peer import available

from tools.prove.registry import check, require


@check(
    "kafka-tools-agree",
    "Kafka's command-line tools print the same for Headrace as for Kafka, also over TLS and SASL",
)
def kafka_tools_agree() -> str:
    return _compare("general")


@check(
    "group-tools-agree",
    "Kafka's consumer-groups tool describes, resets and deletes groups on Headrace as on Kafka, and its "
    "formatters read __consumer_offsets alike",
)
def group_tools_agree() -> str:
    return _compare("groups")


@check(
    "transaction-tools-agree",
    "Kafka's transactions tool lists, describes, finds, aborts and terminates transactions on Headrace as on "
    "Kafka, its formatter reads __transaction_state alike, and headrace transactions reports the same",
)
def transaction_tools_agree() -> str:
    return _compare("transactions")


@check(
    "cluster-tools-agree",
    "Kafka's topics, metadata-quorum, features, cluster and leader-election tools print the same on three nodes of "
    "Headrace as on three of Kafka, while a node dies and returns and a fourth controller joins the quorum and leaves it",
)
def cluster_tools_agree() -> str:
    require(available())
    from tools.prove.kafka_tools.cluster_comparison import compare_clusters

    calls, found = compare_clusters()
    assert not found, f"{len(found)} of {calls} calls differ:\n" + "\n".join(found)
    return f"{calls} calls, no difference"


def _compare(script: str) -> str:
    require(available())
    from tools.prove.kafka_tools import comparison, general_script, group_script, transaction_script

    make: dict[str, Callable[[], comparison.Script]] = {
        "general": lambda: general_script.SCRIPT,
        "groups": lambda: group_script.SCRIPT,
        "transactions": transaction_script.script,
    }
    settings = transaction_script.SETTINGS if script == "transactions" else {}
    calls, found = comparison.compare_servers(make[script], settings)
    assert not found, f"{len(found)} of {calls} calls differ:\n" + "\n".join(found)
    return f"{calls} calls, no difference"
