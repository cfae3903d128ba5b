"""Clusters of Headrace and Apache Kafka: a broker of one kind joins two nodes of the other, leads, follows, dies and returns."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from testkit.kafka_cluster import KafkaCluster
from testkit.kafka_peer import KafkaPeer

from headrace.local_cluster.folder import format_data
from headrace.testing.process_cluster import ClusterProcesses
from headrace.testing.processes import NodeProcess

TOPIC, GROUP = "mixed", "readers-of-mixed"
PARTITIONS, REPLICAS = 6, 3
OTHER_ID = 9
RECORDS = 6000  # in each of three phases: all alive, the other broker dead, the other broker back
WAIT_S_MAX = 90.0
SETTINGS = {"min.insync.replicas": "2", "default.replication.factor": "2"}


class OtherBroker(Protocol):
    """The broker of the other kind, which joins the two nodes."""

    def start(self) -> object: ...

    def kill(self) -> None: ...


class Mixture(NamedTuple):
    title: str
    bootstrap: str  # of the two nodes that stay
    other: OtherBroker


@contextmanager
def kafka_among_headrace() -> Iterator[Mixture]:
    """Yield two combined Headrace nodes, and a Kafka broker for their controllers."""
    with (
        ClusterProcesses(2, SETTINGS) as cluster,
        tempfile.TemporaryDirectory(prefix="kafka-broker-") as directory,
    ):
        other = KafkaPeer(directory=Path(directory), cluster_id=cluster.cluster_id)
        other.settings = {
            **_broker_only(cluster.nodes[0].settings["controller.quorum.voters"], other.bootstrap),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
        try:
            yield Mixture("Kafka joins Headrace", cluster.bootstrap, other)
        finally:
            other.kill()


@contextmanager
def headrace_among_kafka() -> Iterator[Mixture]:
    """Yield two combined Kafka nodes, and a Headrace broker for their controllers."""
    with (
        KafkaCluster(2, SETTINGS) as cluster,
        tempfile.TemporaryDirectory(prefix="headrace-broker-") as directory,
    ):
        other = NodeProcess(directory=Path(directory))
        other.settings = _broker_only(cluster.nodes[0].settings["controller.quorum.voters"], other.bootstrap)
        format_data(other.data_dir, OTHER_ID, cluster.cluster_id)
        try:
            yield Mixture("Headrace joins Kafka", cluster.bootstrap, other)
        finally:
            other.kill()


def _broker_only(voters: str, address: str) -> dict[str, str]:
    return {
        "process.roles": "broker",
        "node.id": str(OTHER_ID),
        "listeners": f"PLAINTEXT://{address}",
        "advertised.listeners": f"PLAINTEXT://{address}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": voters,
    }


def check_mixture(mixture: Mixture, print_progress: Callable[[str], None]) -> str:
    """Write and read through all phases, and return a summary. Raise AssertionError if a record is lost or doubled."""
    from confluent_kafka.admin import AdminClient, NewTopic

    mixture.other.start()
    admin = AdminClient({"bootstrap.servers": mixture.bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS, REPLICAS)]).values():
        created.result(WAIT_S_MAX)

    def partitions() -> list[tuple[int, int]]:
        """Return the leader of each partition and the size of its ISR."""
        found = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions.values()
        return [(partition.leader, len(partition.isrs)) for partition in found]

    def wait_for_isr(size: int) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while any(found != size for _, found in partitions()) or len(partitions()) < PARTITIONS:
            assert time.monotonic() < deadline, f"no ISR of {size} within {WAIT_S_MAX:.0f} s: {partitions()}"
            time.sleep(0.2)

    wait_for_isr(REPLICAS)
    led = sum(leader == OTHER_ID for leader, _ in partitions())
    assert 0 < led < PARTITIONS, f"the other broker leads {led} of {PARTITIONS} partitions"
    written = _write(mixture.bootstrap, 0)
    mixture.other.kill()
    written += _write(mixture.bootstrap, RECORDS)
    wait_for_isr(REPLICAS - 1)
    mixture.other.start()
    wait_for_isr(REPLICAS)
    written += _write(mixture.bootstrap, 2 * RECORDS)
    read = _read(mixture.bootstrap, len(written))
    lost, doubled = written.keys() - read.keys(), [value for value, times in read.items() if times > 1]
    assert not lost and not doubled, f"{mixture.title}: {len(lost)} records lost, {len(doubled)} doubled"
    print_progress(f"{mixture.title}: {len(written)} records written and read once")
    return f"{mixture.title}: it led {led} of {PARTITIONS} partitions, was killed and came back; {len(written)} records once"


def _write(bootstrap: str, first: int) -> Counter[bytes]:
    """Write RECORDS values with acks=all and idempotence, all of which must be acknowledged."""
    from confluent_kafka import Producer

    refused: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0})
    values = [b"%d" % number for number in range(first, first + RECORDS)]
    for number, value in enumerate(values):
        producer.produce(
            TOPIC,
            value,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: refused.append(str(error)) if error is not None else None,
        )
        producer.poll(0)
    left = producer.flush(WAIT_S_MAX)
    assert not left and not refused, f"{left} records had no response, {len(refused)} were refused: {refused[:3]}"
    return Counter(values)


def _read(bootstrap: str, count: int) -> Counter[bytes]:
    """Read the topic as a new group until this many records were read and no more follow."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([TOPIC])
    found: Counter[bytes] = Counter()
    deadline = time.monotonic() + WAIT_S_MAX
    try:
        while True:
            messages = [message for message in consumer.consume(1000, 2.0) if message.error() is None]
            found.update(message.value() or b"" for message in messages)
            if not messages and found.total() >= count:
                return found
            assert time.monotonic() < deadline, f"the group read {found.total()} of {count} records"
    finally:
        consumer.close()
