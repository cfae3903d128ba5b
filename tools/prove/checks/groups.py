"""Consumer groups of real clients."""

from __future__ import annotations

from testkit.kafka_peer import available

from headrace.testing.processes import NodeProcess
from tools.prove.registry import check, print_progress, require

# A small, a medium and a large group; the medium one with every assignor of each client.
ASSIGNORS = {
    "confluent-kafka": ("range", "roundrobin", "cooperative-sticky", "consumer"),
    "kafka-python": ("range", "roundrobin", "sticky", "cooperative-sticky"),
    "aiokafka": ("range", "roundrobin", "sticky"),
    "Java": ("range", "roundrobin", "sticky", "cooperative-sticky", "consumer"),
}
SIZES = (2, 10)
NODE = {"group.initial.rebalance.delay.ms": "500", "group.consumer.session.timeout.ms": "6000",
        "group.consumer.min.session.timeout.ms": "6000", "group.consumer.heartbeat.interval.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "1000"}  # fmt: skip


@check(
    "groups-of-clients",
    "In groups of 2, 3 and 10 members of four clients, with each of their assignors, while members join, leave "
    "and are killed and the node is killed, every record is read, assignments are disjoint and complete, and "
    "committed offsets never decrease",
)
def groups_of_clients() -> str:
    require(available())
    from tools.prove.groups.scenario import GroupScenario, GroupSpec

    specs = [GroupSpec(client, name, 3) for client, names in ASSIGNORS.items() for name in names]
    specs += [GroupSpec(client, names[-1], size) for size in SIZES for client, names in ASSIGNORS.items()]
    read = 0
    with NodeProcess(NODE) as node:
        for number, spec in enumerate(specs, 1):
            print_progress(f"{number} of {len(specs)}: {spec}")
            read += GroupScenario(node, spec, number).run()
    return f"{len(specs)} groups, {read} records read, 0 missed, no committed offset decreased"
