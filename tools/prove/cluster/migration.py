"""Three Kafka nodes are replaced by Headrace one by one, in the same directories, and by Kafka again, under load."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from random import Random

from confluent_kafka.admin import AdminClient, NewTopic
from testkit.kafka_cluster import KafkaCluster
from testkit.kafka_peer import KafkaPeer

from headrace.testing.processes import LOOPBACK, NodeProcess
from tools.prove.cluster.active_controller import active_controller
from tools.prove.cluster.group_load import GroupLoad
from tools.prove.cluster.in_sync import out_of_sync
from tools.prove.cluster.steady_load import SteadyLoad
from tools.prove.cluster.transaction_load import TransactionLoad
from tools.prove.groups.scenario import GroupSpec

NODES, REPLICAS, PARTITIONS = 3, 3, 6
TOPIC = "migrated"
KAFKA, HEADRACE = "Kafka", "Headrace"
GROUPS = (GroupSpec("confluent-kafka", "cooperative-sticky", 2), GroupSpec("confluent-kafka", "consumer", 2))
SETTINGS = {
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    # Snapshots of the metadata after every few changes, so that each kind loads and fetches those of the other.
    "metadata.log.max.record.bytes.between.snapshots": "2000",
}
WAIT_S_MAX = 120.0
STEP_S = 3.0  # load between two steps
POLL_S = 0.2
SHOWN = 5
LOG_SHOWN_CHARACTERS = 6000


class SameFileNode(NodeProcess):
    """A Headrace node in the directory of a Kafka node, started with the server.properties that Kafka was started with."""

    def __init__(self, peer: KafkaPeer) -> None:
        super().__init__(directory=peer.data_dir.parent)
        self.port = self.advertised_port = peer.port
        self._file = peer.data_dir.parent / "server.properties"

    def command(self) -> list[str]:
        options = ["--config", str(self._file), "-c", "headrace.http.listener="]
        return [sys.executable, "-m", "headrace", "serve", *options]


class MigratedNode:
    """One node of the cluster, run by Kafka or by Headrace."""

    def __init__(self, peer: KafkaPeer) -> None:
        self._kafka = peer
        self._headrace = SameFileNode(peer)
        self.kind = KAFKA

    def replace(self) -> None:
        """Stop the server cleanly and start the other one in its directory."""
        if self.kind == KAFKA:
            self._kafka.stop()
            self.kind = HEADRACE
            self._headrace.start()
        else:
            code = self._headrace.terminate()
            assert code == 0, f"Headrace did not stop cleanly: {self.log_end()}"
            self.kind = KAFKA
            self._kafka.start()

    def headrace_problems(self) -> list[str]:
        """Return the lines of Headrace's log that report an error."""
        return [line for line in self._headrace.log_text().splitlines() if "Traceback" in line or " ERROR " in line]

    def log_end(self) -> str:
        server = self._kafka if self.kind == KAFKA else self._headrace
        return f"{self.kind}: {server.log_text()[-LOG_SHOWN_CHARACTERS:]}"

    def close(self) -> None:
        self._headrace.kill()


class Migration:
    """The cluster with its load, and the conditions that hold before each step."""

    def __init__(self, cluster: KafkaCluster, seed: int) -> None:
        self.nodes = [MigratedNode(peer) for peer in cluster.nodes]
        self._bootstrap = cluster.bootstrap
        self._addresses = [(LOOPBACK, peer.port) for peer in cluster.nodes]
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self._topics: list[str] = []
        self._out_of_sync: list[str] = []
        self.load = SteadyLoad(cluster.bootstrap, TOPIC, PARTITIONS)
        self.transactions = TransactionLoad(cluster.bootstrap, seed, REPLICAS)
        self.groups = [GroupLoad(spec, cluster.bootstrap, TOPIC, PARTITIONS) for spec in GROUPS]
        self.gaps_s: list[float] = []  # longest time without an acknowledgement in each step

    def begin(self) -> None:
        self._create_topic(TOPIC, PARTITIONS)
        self.load.start()
        self.transactions.start()
        for group in self.groups:
            group.start()
        self.settle("the load has begun")
        self.load.take_longest_gap_s()  # that of the start

    def step(self, number: int, node: MigratedNode) -> str:
        """Replace the server of one node, change metadata, wait for the cluster, and return a description."""
        node.replace()
        self._create_topic(f"step-{number}", 1)
        self.settle(f"step {number}")
        leader = active_controller(self._addresses)
        self.gaps_s.append(self.load.take_longest_gap_s())
        kinds = "/".join(one.kind for one in self.nodes)
        return (
            f"{kinds}, node {leader} is the active controller, "
            f"longest time without an acknowledgement {self.gaps_s[-1]:.1f} s"
        )

    def settle(self, what: str) -> None:
        """Wait until all replicas are in sync, and load and groups have made progress."""
        self._wait(f"{what}: all replicas are in sync", self._is_in_sync)
        acknowledged, committed = self.load.acknowledged, self.transactions.committed
        read = [group.read for group in self.groups]
        self._wait(f"{what}: the load continues", lambda: self.load.acknowledged > acknowledged)
        self._wait(f"{what}: transactions are committed", lambda: self.transactions.committed > committed)
        self._wait(f"{what}: each partition has a member", lambda: all(group.is_complete for group in self.groups))
        self._wait(
            f"{what}: the groups read on",
            lambda: all(group.read > before for group, before in zip(self.groups, read, strict=True)),
        )
        self._wait(f"{what}: committed offsets are kept", lambda: not any(one.offsets_behind() for one in self.groups))
        self._check_errors()
        time.sleep(STEP_S)

    def end(self) -> None:
        """Stop the load and compare everything with what was acknowledged."""
        self.transactions.finish()
        self.load.finish()
        for group in self.groups:
            group.wait_until_read(self.load.ends, WAIT_S_MAX)
        self._check_errors()
        self.load.check_log()
        found = self._admin.list_topics(timeout=WAIT_S_MAX).topics
        missing = set(self._topics) - found.keys()
        assert not missing, f"topics that were created during the migration are missing: {sorted(missing)}"
        problems = [line for node in self.nodes for line in node.headrace_problems()]
        assert not problems, f"Headrace logged {len(problems)} errors: {problems[:3]}"

    def _create_topic(self, topic: str, partitions: int) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, REPLICAS)])[topic].result(WAIT_S_MAX)
        self._topics.append(topic)

    def _is_in_sync(self) -> bool:
        """Return whether all topics that were created are there with all their replicas in sync."""
        self._out_of_sync = out_of_sync(self._admin)
        return not self._out_of_sync and set(self._topics) <= self._admin.list_topics(timeout=WAIT_S_MAX).topics.keys()

    def _check_errors(self) -> None:
        wrong = [*self.load.failures, *(text for group in self.groups for text in group.ledger.wrong)]
        assert not wrong, f"{len(wrong)} violations: {wrong[:3]}"

    def _wait(self, what: str, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while not is_done():
            self._check_errors()
            assert time.monotonic() < deadline, f"not within {WAIT_S_MAX:.0f} s: {what}; {self.describe()}"
            time.sleep(POLL_S)

    def describe(self) -> str:
        return (
            f"{[node.kind for node in self.nodes]}, {self.load.acknowledged} of {self.load.written} records acknowledged, "
            f"out of sync: {self._out_of_sync[:SHOWN]}; {'; '.join(group.describe() for group in self.groups)}"
        )

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self.transactions.close()
        self.load.close()
        for node in self.nodes:
            node.close()


def migrate_and_return(seed: int, print_progress: Callable[[str], None], *, dynamic_quorum: bool) -> str:
    """Replace Kafka by Headrace and Headrace by Kafka, node by node in random order, and return a summary."""
    random = Random(seed)
    with KafkaCluster(NODES, SETTINGS, dynamic_quorum=dynamic_quorum) as cluster:
        migration = Migration(cluster, seed)
        try:
            migration.begin()
            nodes = migration.nodes
            for number, node in enumerate([*random.sample(nodes, NODES), *random.sample(nodes, NODES)], 1):
                started = time.monotonic()
                shown = migration.step(number, node)
                print_progress(f"step {number}: {shown}, settled after {time.monotonic() - started:.0f} s")
            migration.end()
        except BaseException:
            for number, node in enumerate(migration.nodes, 1):
                print_progress(f"the log of node {number} ends with {node.log_end()}")
            raise
        finally:
            migration.close()
    fenced = "; ".join(migration.transactions.fenced) or "none"
    read = ", ".join(f"{group.read} by {group.group}" for group in migration.groups)
    return (
        f"Kafka → Headrace → Kafka in 6 steps, {'dynamic' if dynamic_quorum else 'static'} quorum: "
        f"{migration.load.acknowledged} records once, read {read}, "
        f"{migration.transactions.committed} transactions committed, fenced producers: {fenced}, "
        f"longest time without an acknowledgement {max(migration.gaps_s):.1f} s (seed {seed})"
    )
