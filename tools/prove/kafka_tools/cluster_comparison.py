"""Kafka's tools on a cluster of three nodes of Headrace and of Kafka, while nodes die, return and join the quorum.

The same steps run on both clusters. Who leads the quorum, offsets, times and the order of an ISR are chance, so they are made equal. Of
errors the class is compared, not the wording. The levels of share.version and streams.version differ, because Headrace serves no such
groups yet.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from testkit.kafka_cluster import KafkaCluster
from testkit.kafka_peer import KafkaPeer, tool

from headrace.local_cluster.folder import format_data
from headrace.testing.process_cluster import ClusterProcesses
from headrace.testing.processes import LOOPBACK, NodeProcess
from tools.prove.registry import print_progress

WAIT_S_MAX = 90.0
PAUSE_S = 0.5
JOINING_ID = 4
TOPIC = "t"
ASSIGNMENT = "1:2:3,2:3:1,3:1:2"
UNKNOWN_DIRECTORY = "ZGRkZGRkZGRkZGRkZGRkZA"
_ID = re.compile(r"(?<![.\w-])[A-Za-z0-9_-]{22}\b")
_ISR = re.compile(r"Isr: ([0-9,]+)")
_NOT_SERVED = re.compile(r"Feature: (share|streams)\.version ")
_PLACEHOLDERS = (
    (re.compile(rf"(localhost|{re.escape(LOOPBACK)})[: ][0-9]+"), "ADDRESS"),
    (re.compile(r"\b1[0-9]{12}\b"), "TIME"),
    (re.compile(r"(errors\.\w+Exception): .*"), r"\1"),
    (_ID, "ID"),
    (re.compile(r"^(LeaderId|LeaderEpoch|HighWatermark|MaxFollowerLag|MaxFollowerLagTimeMs):.*"), r"\1: N"),
    (re.compile(r"Epoch: [0-9]+"), "Epoch: N"),
)


class Process(Protocol):
    def start(self) -> object: ...

    def kill(self) -> None: ...


class ToolCluster(NamedTuple):
    """A cluster of one kind. `join` starts a fourth controller and returns its process and properties file."""

    name: str
    bootstrap: str
    nodes: Sequence[Process]
    join: Callable[[], tuple[Process, Path]]


def compare_clusters() -> tuple[int, list[str]]:
    """Run the steps on both clusters and return the number of calls and the differences."""
    with tempfile.TemporaryDirectory(prefix="headrace-cluster-tools-") as name:
        kafka = _on_kafka(Path(name, "kafka"))
        headrace = _on_headrace(Path(name, "headrace"))
    assert [step for step, _ in kafka] == [step for step, _ in headrace]
    differences = [
        f"{step}\n  Kafka:    {ours!r}\n  Headrace: {theirs!r}"
        for (step, ours), (_, theirs) in zip(kafka, headrace, strict=True)
        if ours != theirs
    ]
    return len(kafka), differences


def _on_kafka(directory: Path) -> list[tuple[str, str]]:
    with KafkaCluster(3) as cluster:
        controllers = ",".join(f"{LOOPBACK}:{peer.controller_port}" for peer in cluster.nodes)

        def join() -> tuple[Process, Path]:
            peer = KafkaPeer(
                directory=directory, cluster_id=cluster.cluster_id, format_options=("--no-initial-controllers",)
            )
            peer.settings = _controller_settings(peer.controller_port, controllers, peer.data_dir)
            peer.port = peer.controller_port
            return peer.start(), directory / "server.properties"

        return _Steps(ToolCluster("Kafka", cluster.bootstrap, cluster.nodes, join)).run()


def _on_headrace(directory: Path) -> list[tuple[str, str]]:
    with ClusterProcesses(3) as cluster:
        controllers = ",".join(
            address.partition("@")[2] for address in cluster.nodes[0].settings["controller.quorum.voters"].split(",")
        )

        def join() -> tuple[Process, Path]:
            node = NodeProcess(directory=directory)
            node.settings = _controller_settings(node.port, controllers, node.data_dir)
            format_data(node.data_dir, JOINING_ID, cluster.cluster_id)
            file = directory / "server.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in node.settings.items()))
            return node.start(), file

        return _Steps(ToolCluster("Headrace", cluster.bootstrap, cluster.nodes, join)).run()


def _controller_settings(port: int, controllers: str, data_dir: Path) -> dict[str, str]:
    address = f"CONTROLLER://{LOOPBACK}:{port}"
    return {
        "process.roles": "controller",
        "node.id": str(JOINING_ID),
        "listeners": address,
        "advertised.listeners": address,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "",
        "controller.quorum.bootstrap.servers": controllers,
        "log.dirs": str(data_dir),
    }


class _Steps:
    """Runs the steps on one cluster, and keeps the command and the normalized output of each."""

    def __init__(self, cluster: ToolCluster) -> None:
        self._cluster = cluster
        self._found: list[tuple[str, str]] = []

    def run(self) -> list[tuple[str, str]]:
        self._topics_and_quorum()
        self._death_and_return()
        self._elections()
        process, file = self._change_of_voters()
        process.kill()
        assert file.exists()
        return self._found

    def _topics_and_quorum(self) -> None:
        self._call("topics", f"--create --topic {TOPIC} --replica-assignment {ASSIGNMENT}")
        self._wait_for_isr(3)
        self._call("topics", f"--describe --topic {TOPIC}")
        self._call("topics", f"--create --topic {TOPIC}x --partitions 1 --replication-factor 4")
        self._call("metadata-quorum", "describe --status")
        self._call("metadata-quorum", "describe --replication", tidy=_replication)
        self._call("features", "describe")
        self._call("cluster", "cluster-id", tidy=_cluster_id)
        self._call("cluster", "list-endpoints")

    def _death_and_return(self) -> None:
        self._cluster.nodes[2].kill()
        self._wait_for_isr(2)
        for option in ("under-replicated", "at-min-isr", "under-min-isr", "unavailable"):
            self._call("topics", f"--describe --topic {TOPIC} --{option}-partitions")
        self._call("cluster", "list-endpoints --include-fenced-brokers")
        self._cluster.nodes[2].start()
        self._wait_for_isr(3)

    def _elections(self) -> None:
        everything = f"--election-type preferred --topic {TOPIC} --partition"
        self._call("leader-election", f"{everything} 2")
        self._call("topics", f"--describe --topic {TOPIC}")
        self._call("leader-election", f"{everything} 2")
        self._call("leader-election", f"--election-type unclean --topic {TOPIC} --partition 0")
        self._call("leader-election", "--election-type preferred --topic missing --partition 0")

    def _change_of_voters(self) -> tuple[Process, Path]:
        self._call("metadata-quorum", f"remove-controller -i 3 -d {UNKNOWN_DIRECTORY}")
        self._call("features", "upgrade --feature kraft.version=1")
        self._call("features", "upgrade --feature kraft.version=1")
        self._call("features", "downgrade --feature kraft.version=0")
        self._call("features", "describe")
        self._call("metadata-quorum", "describe --status")
        process, file = self._cluster.join()
        self._wait(lambda: self._observer_has_joined(), "the fourth controller does not follow the quorum")
        self._call("metadata-quorum", "add-controller", config=file)
        self._call("metadata-quorum", "describe --status")
        self._call("metadata-quorum", "describe --replication", tidy=_replication)
        self._call("metadata-quorum", "add-controller", config=file)
        self._call("metadata-quorum", f"remove-controller -i {JOINING_ID} -d {UNKNOWN_DIRECTORY}")
        directory = self._directory_of(JOINING_ID)
        self._call("metadata-quorum", f"remove-controller -i {JOINING_ID} -d {directory}")
        self._call("metadata-quorum", f"remove-controller -i {JOINING_ID} -d {directory}")
        self._call("metadata-quorum", "describe --status")
        return process, file

    # --- calls

    def _call(
        self, name: str, text: str, *, config: Path | None = None, tidy: Callable[[list[str]], list[str]] = list
    ) -> None:
        print_progress(f"{self._cluster.name}: kafka-{name} {text}")
        lines = [_ISR.sub(_sorted_isr, line) for line in tidy(_lines(self._run(name, text, config)))]
        for pattern, replacement in _PLACEHOLDERS:
            lines = [pattern.sub(replacement, line) for line in lines]
        self._found.append((_ID.sub("ID", f"kafka-{name} {text}"), "\n".join(lines)))

    def _run(self, name: str, text: str, config: Path | None = None) -> str:
        address = ["--bootstrap-server", self._cluster.bootstrap]
        if config is not None:
            address += ["--command-config", str(config)]
        is_server_first = name in ("metadata-quorum", "features")
        arguments = [*address, *text.split()] if is_server_first else [*text.split(), *address]
        done = tool(name, *arguments)
        return f"{done.stdout.decode(errors='replace')}\n{done.stderr.decode(errors='replace')}\nexit {done.returncode}"

    def _wait(self, wanted: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while not wanted():
            assert time.monotonic() < deadline, f"{self._cluster.name}: {problem} within {WAIT_S_MAX:.0f} s"
            time.sleep(PAUSE_S)

    def _wait_for_isr(self, size: int) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, "log_level": 0})

        def is_reached() -> bool:
            found = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
            return len(found) == 3 and all(len(one.isrs) == size and one.leader >= 0 for one in found.values())

        self._wait(is_reached, f"not every ISR has {size} members")

    def _observer_has_joined(self) -> bool:
        rows = [line.split() for line in self._run("metadata-quorum", "describe --replication").splitlines()]
        return any(row[:1] == [str(JOINING_ID)] and row[-1] == "Observer" and row[3] == "0" for row in rows)

    def _directory_of(self, node_id: int) -> str:
        rows = [line.split() for line in self._run("metadata-quorum", "describe --replication").splitlines()]
        return next(row[1] for row in rows if row[:1] == [str(node_id)])


def _lines(text: str) -> list[str]:
    """Return the lines without stack traces, dated lines of the log, and differences in white space."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return [
        line
        for line in lines
        if not line.startswith(("at ", "... ", "Caused by"))
        and not re.match(r"\[?[0-9]{4}-[0-9]{2}-[0-9]{2}", line)
        and not _NOT_SERVED.match(line)
    ]


def _sorted_isr(found: re.Match[str]) -> str:
    return f"Isr: {','.join(sorted(found[1].split(',')))}"


def _replication(lines: list[str]) -> list[str]:
    """Keep node, directory and status of each replica, in the order of the ids; any voter may be the leader."""
    kept = []
    for line in lines:
        words = line.split()
        if words and words[0].isdigit():
            line = f"{words[0]} {words[1]} {'Voter' if words[-1] in ('Leader', 'Follower') else words[-1]}"
        kept.append(line)
    return sorted(kept)


def _cluster_id(lines: list[str]) -> list[str]:
    return [re.sub(r"Cluster ID: \S+", "Cluster ID: ID", line) for line in lines]
