"""The scenarios of the suite, and the two servers that each runs against."""

from __future__ import annotations

import time
from collections.abc import Callable

from testkit.kafka_peer import VERSION, KafkaPeer

from headrace.testing.processes import NodeProcess
from tools.prove.client_conformance.faults import back_pressure, delivery_timeout, restarts_under_load
from tools.prove.client_conformance.groups import groups
from tools.prove.client_conformance.partitions import partitioners
from tools.prove.client_conformance.records import codecs, offsets_by_time
from tools.prove.client_conformance.server import ServerUnderTest
from tools.prove.client_conformance.transactions import transactions

SCENARIOS: dict[str, Callable[[ServerUnderTest], str]] = {
    "codecs": codecs,
    "partitioners": partitioners,
    "offsets-by-time": offsets_by_time,
    "transactions": transactions,
    "back-pressure": back_pressure,
    "delivery-timeout": delivery_timeout,
    "restarts-under-load": restarts_under_load,
    "groups": groups,
}
SETTINGS = {
    "log.retention.ms": "-1",  # records have timestamps of another year
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "200",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}
SERVERS: dict[str, Callable[[], NodeProcess | KafkaPeer]] = {
    "Headrace": lambda: NodeProcess(SETTINGS),
    f"Kafka {VERSION}": lambda: KafkaPeer(SETTINGS),
}


def run_suite(
    print_progress: Callable[[str], None], scenarios: list[str] | None = None, servers: list[str] | None = None
) -> dict[str, str]:
    """Return each result by server and scenario. Raise AssertionError naming the first scenario that fails."""
    figures: dict[str, str] = {}
    for name in servers or list(SERVERS):
        with SERVERS[name]() as process:
            for scenario in scenarios or list(SCENARIOS):
                started = time.monotonic()
                try:
                    figures[f"{name}: {scenario}"] = figure = SCENARIOS[scenario](ServerUnderTest(name, process))
                except Exception as error:
                    raise AssertionError(f"{name}: {scenario}: {type(error).__name__}: {error}") from error
                print_progress(f"{name}: {scenario}: {figure} ({time.monotonic() - started:.0f} s)")
    return figures
