"""Tests of what a program does while its cluster fails. Run them with `pytest examples/test_failures.py`.

`headrace_cluster` is a fixture that comes with Headrace: three nodes inside the test process, which start in a moment and can be killed
and paused. `ClusterProcesses` starts real processes; with `links=True` they can also be cut off from each other and from clients.
"""

import time
from collections.abc import Callable

from headrace.client import Admin, NewTopic, Producer
from headrace.testing.embedded_cluster import EmbeddedCluster
from headrace.testing.process_cluster import ClusterProcesses

WAIT_S_MAX = 60.0


def send(bootstrap: str, topic: str, value: bytes) -> int:
    """Return the offset of the record: the program under test. All in-sync replicas have acknowledged it."""
    with Producer({"bootstrap.servers": bootstrap, "acks": "all", "request.timeout.ms": 3000}) as producer:
        return producer.send(topic, value, partition=0).result(WAIT_S_MAX).offset


def in_sync_replicas(bootstrap: str, topic: str) -> list[int]:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        return sorted(admin.describe_topics([topic], timeout_s=WAIT_S_MAX)[topic].partitions[0].isr)


def wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_writing_continues_when_a_node_is_killed(headrace_cluster: EmbeddedCluster) -> None:
    assert send(headrace_cluster.bootstrap, "orders", b"three apples") == 0
    headrace_cluster.node(2).kill()
    assert send(headrace_cluster.bootstrap, "orders", b"a pear") == 1
    headrace_cluster.node(2).start()
    wait_until(lambda: in_sync_replicas(headrace_cluster.bootstrap, "orders") == [1, 2, 3])


def test_writing_continues_when_the_leader_is_cut_off() -> None:
    fast = {  # Kafka's defaults are 9 s, 2 s and 1 s
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "400",
        "controller.quorum.election.timeout.ms": "300",
    }
    with ClusterProcesses(3, fast, links=True) as cluster:
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            admin.create_topics([NewTopic("orders", assignments=[[1, 2, 3]])], timeout_s=WAIT_S_MAX)  # node 1 leads
        assert send(cluster.bootstrap, "orders", b"three apples") == 0
        cluster.cut(1)
        others = f"{cluster.node(2).bootstrap},{cluster.node(3).bootstrap}"
        assert send(others, "orders", b"a pear") == 1
        assert in_sync_replicas(others, "orders") == [2, 3]
        cluster.heal()
        wait_until(lambda: in_sync_replicas(cluster.bootstrap, "orders") == [1, 2, 3])
