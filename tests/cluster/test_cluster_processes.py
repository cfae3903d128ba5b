"""Real processes: all of them killed and restarted in every order, a bit flipped on a real disk, a second process with one node id."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path

import pytest

from headrace.base.ids import TopicPartition
from headrace.client import Admin, Consumer, Producer
from headrace.client.admin.topic_changes import NewTopic
from headrace.client.admin.topics import PartitionInfo
from headrace.testing.process_cluster import ClusterProcesses
from headrace.testing.processes import NodeProcess, ProcessFailed

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
WAIT_S = 120.0
T0 = TopicPartition("t", 0)


@contextmanager
def running_cluster() -> Iterator[ClusterProcesses]:
    cluster = ClusterProcesses(3)
    try:
        yield cluster.start(WAIT_S)
    finally:
        cluster.close()


def until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not wanted():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def state(cluster: ClusterProcesses) -> PartitionInfo:
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        return admin.describe_topics(["t"])["t"].partitions[0]


def create(cluster: ClusterProcesses) -> None:
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic("t", 1, 3)])
    until(lambda: len(state(cluster).isr) == 3)


def send(cluster: ClusterProcesses, values: range) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"}) as producer:
        for delivery in [producer.send("t", b"%d" % value) for value in values]:
            delivery.result(WAIT_S)


def read(cluster: ClusterProcesses, count: int) -> list[int]:
    found: list[int] = []
    with Consumer({"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([T0])
        while len(found) < count:
            records = consumer.poll(WAIT_S)
            assert records, f"only {len(found)} of {count} records could be read"
            found += [int(record.value or b"") for record in records]
    return found


def test_processes_that_are_all_killed_at_once_may_be_restarted_in_every_order() -> None:
    with running_cluster() as cluster:
        create(cluster)
        sent = 0
        for order in permutations((1, 2, 3)):
            send(cluster, range(sent, sent + 100))
            sent += 100
            for node in cluster.nodes:
                node.kill()
            for node_id in order:
                cluster.node(node_id).launch()
                time.sleep(1.0)
            for node in cluster.nodes:
                node.wait_until_serving(WAIT_S)
            until(lambda: len(state(cluster).isr) == 3)
            assert read(cluster, sent) == list(range(sent))


def test_a_flipped_bit_on_the_leaders_disk_moves_the_leadership_and_is_repaired() -> None:
    with running_cluster() as cluster:
        create(cluster)
        send(cluster, range(100))
        old = state(cluster).leader
        follower = next(node_id for node_id in (1, 2, 3) if node_id != old)
        cluster.node(follower).kill()
        send(cluster, range(100, 200))
        segment = Path(cluster.node(old).data_dir, "t-0", "00000000000000000000.log")
        damage(segment, segment.stat().st_size - 20)
        cluster.node(follower).start()
        until(lambda: state(cluster).leader not in (-1, old))
        until(lambda: len(state(cluster).isr) == 3)
        assert read(cluster, 200) == list(range(200))
        assert "t-0 is damaged on this broker" in cluster.node(old).log_text()
        assert all("Traceback" not in node.log_text() for node in cluster.nodes)


def damage(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))


def test_a_second_process_with_the_same_node_id_ends_with_the_reason(tmp_path: Path) -> None:
    with running_cluster() as cluster:
        create(cluster)
        settings = {
            "process.roles": "broker",
            "node.id": "4",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": cluster.nodes[0].settings["controller.quorum.voters"],
            "initial.broker.registration.timeout.ms": "5000",
        }
        first, second = (NodeProcess(settings, directory=tmp_path / name) for name in ("first", "second"))
        for node in (first, second):
            format_disk(node, cluster_id_of(cluster.node(1)))
        with first:
            with pytest.raises(ProcessFailed, match="DUPLICATE_BROKER_REGISTRATION"):
                second.start()
            send(cluster, range(10))
            assert first.is_running


def cluster_id_of(node: NodeProcess) -> str:
    lines = Path(node.data_dir, "meta.properties").read_text().splitlines()
    return next(line.removeprefix("cluster.id=") for line in lines if line.startswith("cluster.id="))


def format_disk(node: NodeProcess, cluster_id: str) -> None:
    node.data_dir.mkdir(parents=True)
    serve = node.command()
    options = serve[serve.index("serve") + 1 :]
    command = [sys.executable, "-m", "headrace", "format", *options, "--cluster-id", cluster_id]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)
