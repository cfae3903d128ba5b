"""A broker of three is killed while the Java client writes, and Kafka's tools watch the ISR shrink and grow back."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable

from testkit.kafka_peer import java, tool

from headrace.testing.process_cluster import ClusterProcesses

TOPIC = "written-by-java"
PARTITIONS, REPLICAS, MIN_ISR = 6, 3, 2
RECORDS, RECORDS_PER_S = 60_000, 3000
WAIT_S_MAX = 90.0
_ISR = re.compile(r"\bLeader: (-?\d+|none)\b.*\bIsr: ([\d,]*)")
_OFFSET = re.compile(r":(\d+):(\d+)$", re.MULTILINE)


def survive(print_progress: Callable[[str], None]) -> str:
    """Kill and restart a broker under load, and return a summary. Raise AssertionError if anything is lost or doubled."""
    with ClusterProcesses(3, {"min.insync.replicas": str(MIN_ISR)}) as cluster:
        _tool(cluster, "topics", "--create", "--topic", TOPIC, f"--partitions={PARTITIONS}", "--replication-factor=3")
        _wait_for(cluster, "all replicas are in sync", lambda: _sizes(cluster) == {3: PARTITIONS})
        load = _java_load(cluster.bootstrap)
        try:
            time.sleep(4.0)
            victim = _leaders(cluster).most_common(1)[0][0]
            cluster.node(victim).kill()
            print_progress(f"broker {victim} is killed")
            _wait_for(cluster, "every ISR has two members", lambda: _sizes(cluster) == {2: PARTITIONS})
            under = _tool(cluster, "topics", "--describe", "--under-replicated-partitions", "--topic", TOPIC)
            assert len(_ISR.findall(under)) == PARTITIONS, f"not all partitions are under-replicated: {under}"
            cluster.node(victim).start()
            _wait_for(cluster, "every ISR has three members", lambda: _sizes(cluster) == {3: PARTITIONS})
            print_progress(f"broker {victim} is back in every ISR")
            under = _tool(cluster, "topics", "--describe", "--under-replicated-partitions", "--topic", TOPIC)
            assert not _ISR.findall(under), f"some partitions are still under-replicated: {under}"
            output, errors = load.communicate(timeout=WAIT_S_MAX)
        finally:
            load.kill()
            load.wait()
        assert load.returncode == 0 and f"{RECORDS} records sent" in output, f"Java's producer failed: {output}{errors}"
        ends = _OFFSET.findall(_tool(cluster, "get-offsets", "--topic", TOPIC))
        stored = sum(int(end) for _, end in ends)
        assert stored == RECORDS, f"Java's producer wrote {RECORDS} records, the topic has {stored}"
    return f"Java: {RECORDS} records acknowledged, {stored} stored; ISR 3 → 2 → 3 as kafka-topics shows"


def _java_load(bootstrap: str) -> subprocess.Popen[str]:
    """Start Kafka's own load generator: an idempotent producer with acks=all."""
    arguments = (
        *("--topic", TOPIC, "--num-records", str(RECORDS), "--record-size", "100", "--throughput", str(RECORDS_PER_S)),
        *("--command-property", f"bootstrap.servers={bootstrap}", "acks=all", "enable.idempotence=true"),
    )
    command = java("org.apache.kafka.tools.ProducerPerformance", *arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _tool(cluster: ClusterProcesses, name: str, *arguments: str) -> str:
    alive = ",".join(node.bootstrap for node in cluster.nodes if node.is_running)
    done = tool(name, "--bootstrap-server", alive, *arguments)
    assert done.returncode == 0, f"kafka-{name} {arguments} failed: {done.stderr.decode(errors='replace')}"
    return done.stdout.decode()


def _describe(cluster: ClusterProcesses) -> list[tuple[str, str]]:
    return _ISR.findall(_tool(cluster, "topics", "--describe", "--topic", TOPIC))


def _sizes(cluster: ClusterProcesses) -> dict[int, int]:
    """Return how many partitions have an ISR of each size."""
    return dict(Counter(len(isr.split(",")) if isr else 0 for _, isr in _describe(cluster)))


def _leaders(cluster: ClusterProcesses) -> Counter[int]:
    return Counter(int(leader) for leader, _ in _describe(cluster) if leader.isdigit())


def _wait_for(cluster: ClusterProcesses, what: str, is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_done():
        assert time.monotonic() < deadline, (
            f"within {WAIT_S_MAX:.0f} s it did not happen that {what}: {_describe(cluster)}"
        )
        time.sleep(0.2)
