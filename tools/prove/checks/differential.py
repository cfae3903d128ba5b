"""The same requests to real Kafka and to Headrace."""

from __future__ import annotations

import os
from collections.abc import Sequence

from testkit import kafka_peer as peers

from headrace.testing.processes import LOOPBACK, NodeProcess, free_port
from tools.prove.differential.admin_scripts import ADMIN_SCRIPTS, SASL_SCRIPTS
from tools.prove.differential.group_scripts import CLASSIC_SCRIPTS, DISABLED_SCRIPTS, GROUP_SCRIPTS
from tools.prove.differential.operations import TOPICS
from tools.prove.differential.run import compare
from tools.prove.differential.scripts import Script, ScriptDifference, compare_scripts
from tools.prove.differential.transaction_scripts import TRANSACTION_SCRIPTS
from tools.prove.differential.wire import Target
from tools.prove.registry import WORK, check, print_progress, random_seed, require

OPERATIONS = 10_000
SETTINGS = {
    "log.retention.ms": "-1",  # records have timestamps of any year, and the two servers would not delete them at the same moment
    "group.initial.rebalance.delay.ms": "0",
    # With one partition, coordinators respond in the order of the request rather than of a hash table.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
# Settings of both servers, and the scripts that run with them.
SCRIPTS: tuple[tuple[dict[str, str], Sequence[Script]], ...] = (
    ({}, (*GROUP_SCRIPTS, *TRANSACTION_SCRIPTS, *ADMIN_SCRIPTS)),
    ({"group.consumer.migration.policy": "disabled"}, DISABLED_SCRIPTS),
    ({"group.coordinator.rebalance.protocols": "classic"}, CLASSIC_SCRIPTS),
)


@check(
    "differential",
    "10,000 valid and invalid Produce, Fetch and ListOffsets requests get the same responses as from a real Kafka "
    "(offsets, errors, timestamps, bytes); so do scripted groups of both protocols, transactions and admin "
    "requests",
)
def differential() -> str:
    require(peers.available())
    scripts_figure = _compare_scripts()
    operations = int(os.environ.get("HEADRACE_OPERATIONS", OPERATIONS))
    seed = random_seed()
    print_progress(f"seed {seed}")
    with peers.KafkaPeer(SETTINGS) as kafka, NodeProcess(SETTINGS) as node:
        result = compare(
            (LOOPBACK, kafka.port),
            (LOOPBACK, node.port),
            operations=operations,
            seed=seed,
            print_progress=print_progress,
        )
    if result.differences:
        report = WORK / "differences.txt"
        report.write_text("\n\n".join(map(str, result.differences)) + "\n")
        raise AssertionError(f"{result.figure()}: see {report}; the first: {result.differences[0]}")
    return f"{result.figure()}; {scripts_figure}"


def _compare_scripts() -> str:
    count = 0
    differences: list[ScriptDifference] = []
    for more_settings, scripts in SCRIPTS:
        settings = {**SETTINGS, **more_settings}
        with peers.KafkaPeer(settings) as kafka, NodeProcess(settings) as node:
            targets = Target("Kafka", (LOOPBACK, kafka.port)), Target("Headrace", (LOOPBACK, node.port))
            for target in targets:
                target.create_topics(TOPICS)
            compared, found = compare_scripts(scripts, *targets)
            for target in targets:
                target.close()
        count, differences = count + compared, [*differences, *found]
    compared, found = _compare_logins()
    count, differences = count + compared, [*differences, *found]
    figure = f"{count} responses of {sum(len(scripts) for _, scripts in SCRIPTS) + len(SASL_SCRIPTS)} scripts"
    print_progress(f"{figure}, {len(differences)} differences")
    assert not differences, f"{figure}, {len(differences)} differences; the first: {differences[0]}"
    return figure


def _compare_logins() -> tuple[int, list[ScriptDifference]]:
    """Run the scripts of clients that are not logged in yet, on a SASL listener."""
    kafka, node = peers.KafkaPeer(SETTINGS), NodeProcess(SETTINGS)
    ports = {}
    for name, settings, port in (("Kafka", kafka.settings, kafka.port), ("Headrace", node.settings, node.port)):
        ports[name] = free_port()
        settings.update(_sasl_settings(port, ports[name], kafka.controller_port if name == "Kafka" else free_port()))
    with kafka, node:
        targets = [Target(name, (LOOPBACK, port)) for name, port in ports.items()]
        result = compare_scripts(SASL_SCRIPTS, *targets)
        for target in targets:
            target.close()
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
