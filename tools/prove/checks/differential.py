"""The same requests to real Kafka and to Headrace."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from testkit import kafka_peer as peers

from headrace.testing.processes import LOOPBACK, NodeProcess, free_port
from tools.prove.differential.admin_scripts import ADMIN_STORIES, SASL_STORIES
from tools.prove.differential.group_scripts import CLASSIC_STORIES, DISABLED_STORIES, GROUP_STORIES
from tools.prove.differential.operations import TOPICS
from tools.prove.differential.run import compare
from tools.prove.differential.scripts import Story, StoryDifference, compare_stories
from tools.prove.differential.transaction_scripts import TRANSACTION_STORIES
from tools.prove.differential.wire import Target
from tools.prove.registry import WORK, NotRun, check, say

OPERATIONS = 10_000
SETTINGS = {
    "log.retention.ms": "-1",  # timestamps are of any year, and the two would not delete at the same moment
    "group.initial.rebalance.delay.ms": "0",
    # With one partition, coordinators respond in the order of the request rather than of a hash table.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
# Settings of both servers, and the scripts that run with them.
STORIES: tuple[tuple[dict[str, str], Sequence[Story]], ...] = (
    ({}, (*GROUP_STORIES, *TRANSACTION_STORIES, *ADMIN_STORIES)),
    ({"group.consumer.migration.policy": "disabled"}, DISABLED_STORIES),
    ({"group.coordinator.rebalance.protocols": "classic"}, CLASSIC_STORIES),
)


@check(
    "differential",
    "10,000 valid and invalid Produce, Fetch and ListOffsets requests get the same responses as from a real Kafka "
    "(offsets, errors, timestamps, bytes); so do scripted groups of both protocols, transactions and admin "
    "requests",
)
def differential() -> str:
    reason = peers.available()
    if reason is not None:
        raise NotRun(reason)
    scripts_figure = _compare_stories()
    operations = int(os.environ.get("HEADRACE_OPERATIONS", OPERATIONS))
    seed = int(os.environ.get("HEADRACE_SEED", random.SystemRandom().randrange(1 << 32)))
    say(f"seed {seed}")
    with peers.KafkaPeer(SETTINGS) as kafka, NodeProcess(SETTINGS) as node:
        result = compare((LOOPBACK, kafka.port), (LOOPBACK, node.port), operations=operations, seed=seed, say=say)
    if result.differences:
        report = WORK / "differences.txt"
        report.write_text("\n\n".join(map(str, result.differences)) + "\n")
        raise AssertionError(f"{result.figure()}: see {report}; the first: {result.differences[0]}")
    return f"{result.figure()}; {scripts_figure}"


def _compare_stories() -> str:
    count = 0
    differences: list[StoryDifference] = []
    for more, stories in STORIES:
        settings = {**SETTINGS, **more}
        with peers.KafkaPeer(settings) as kafka, NodeProcess(settings) as node:
            sides = Target("Kafka", (LOOPBACK, kafka.port)), Target("we", (LOOPBACK, node.port))
            for side in sides:
                side.create_topics(TOPICS)
            compared, found = compare_stories(stories, *sides)
            for side in sides:
                side.close()
        count, differences = count + compared, [*differences, *found]
    compared, found = _compare_logins()
    count, differences = count + compared, [*differences, *found]
    figure = f"{count} answers of {sum(len(stories) for _, stories in STORIES) + len(SASL_STORIES)} scripts"
    say(f"{figure}, {len(differences)} differences")
    assert not differences, f"{figure}, {len(differences)} differences; the first: {differences[0]}"
    return figure


def _compare_logins() -> tuple[int, list[StoryDifference]]:
    """Play the scripts of clients that are not logged in yet, on a SASL listener."""
    kafka, node = peers.KafkaPeer(SETTINGS), NodeProcess(SETTINGS)
    ports = {}
    for name, settings, port in (("Kafka", kafka.settings, kafka.port), ("we", node.settings, node.port)):
        ports[name] = free_port()
        settings.update(_sasl_settings(port, ports[name], kafka.controller_port if name == "Kafka" else free_port()))
    with kafka, node:
        sides = [Target(name, (LOOPBACK, port)) for name, port in ports.items()]
        result = compare_stories(SASL_STORIES, *sides)
        for side in sides:
            side.close()
    return result


def _sasl_settings(port: int, sasl_port: int, controller_port: int) -> dict[str, str]:
    plain, sasl = f"PLAINTEXT://{LOOPBACK}:{port}", f"SASL_PLAINTEXT://{LOOPBACK}:{sasl_port}"
    return {
        "listeners": f"{plain},{sasl},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"{plain},{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_bob="secret";'
        ),
    }
