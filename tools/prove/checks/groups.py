"""Whole groups of real clients."""

from __future__ import annotations

from testkit.kafka_peer import available

from headrace.testing.processes import NodeProcess
from tools.prove.registry import NotRun, check, say

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
    reason = available()
    if reason is not None:
        raise NotRun(reason)
    from tools.prove.groups.scenario import Cast, Story

    casts = [Cast(client, name, 3) for client, names in ASSIGNORS.items() for name in names]
    casts += [Cast(client, names[-1], size) for size in SIZES for client, names in ASSIGNORS.items()]
    read = 0
    with NodeProcess(NODE) as node:
        for number, cast in enumerate(casts, 1):
            say(f"{number} of {len(casts)}: {cast}")
            read += Story(node, cast, number).play()
    return f"{len(casts)} groups, {read} records read, 0 left out, no offset went back"
