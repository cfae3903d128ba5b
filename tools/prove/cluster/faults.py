"""Rounds of faults in a cluster of three nodes under load, with a history of all responses.

Idempotent and transactional producers write to replicated topics while nodes are killed, paused, cut off and restarted. One thread polls
all clients, so the history has a total order. After each fault the cluster heals, and the load must make progress again.

Each node has a network namespace of its own, and so do the clients: `run_in_namespaces` starts this module there as a program,
`python -m tools.prove.cluster.faults ROUNDS SEED NETWORK`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random

from testkit.history import FinalRead, History, Place, check
from testkit.history_transactions import check_transactions
from testkit.network_namespaces import NamespaceHosts

from headrace.base.ids import METADATA_TOPIC
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest
from headrace.testing.process_cluster import ClusterProcesses
from headrace.testing.processes import Host, NodeProcess
from tools.prove.registry import ROOT
from tools.prove.storage.kill_nine import BURST, LoadProducer, Reader
from tools.prove.storage.kill_nine import PARTITIONS as PLAIN_PARTITIONS
from tools.prove.storage.kill_nine import TOPICS as PLAIN_TOPICS
from tools.prove.transactions.kills import PLACES as TRANSACTIONAL_PLACES
from tools.prove.transactions.kills import CommittedReader
from tools.prove.transactions.reading import COMMITTED, UNCOMMITTED, create_topics, read_all, undecided
from tools.prove.transactions.worker import PARTITIONS, TOPICS
from tools.prove.transactions.worker_processes import WorkerProcess

NODES, REPLICAS = 3, 3
WORKERS = 2
LOAD_S = (0.3, 1.5)
DOWN_S = (0.2, 4.0)
PAUSE_S = (0.2, 14.0)  # the longer ones outlast the session of a broker (9 s)
HEAL_S_MAX = 60.0
ENDED_S_MAX = 120.0
POLL_S = 0.005
SHOWN_LINES = 30
PLAIN_PLACES: tuple[Place, ...] = tuple((topic, index) for topic in PLAIN_TOPICS for index in range(PLAIN_PARTITIONS))
ALL_PLACES = (*PLAIN_PLACES, *TRANSACTIONAL_PLACES)
SETTINGS = {
    "num.partitions": "3",
    "log.segment.bytes": "1048576",
    "log.index.interval.bytes": "1024",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.num.partitions": "5",
    "offsets.topic.num.partitions": "5",
}
FAULTS = {
    "broker killed": 5,
    "active controller killed": 3,
    "node paused": 4,
    "active controller paused": 2,
    "two nodes killed": 1,
    "all nodes killed": 1,
    "node restarted cleanly": 2,
    "node cut off from the others": 3,
    "active controller cut off from the others": 2,
    "link between two nodes cut": 2,
    "node cut off from all": 1,
}
CLIENT_HOST = NODES + 1
CUT_S = (0.5, 14.0)


class ClusterRounds:
    """The load on a cluster, with a fault of some of its nodes in each round."""

    def __init__(self, cluster: ClusterProcesses, hosts: NamespaceHosts, seed: int) -> None:
        self._hosts = hosts
        self.random = Random(seed)
        self.history = History(time.monotonic)
        self.done: Counter[str] = Counter()
        self.longest_gap_s = 0.0  # time without an acknowledged write while at least two nodes were alive
        self._cluster = cluster
        self._producers: list[LoadProducer] = []
        self._workers: list[WorkerProcess] = []
        self._replaced: list[WorkerProcess] = []  # exited workers
        self._names = 0
        self._last_s = time.monotonic()
        self._progress = 0

    def begin(self) -> None:
        bootstrap = self._cluster.bootstrap
        create_topics(bootstrap, PLAIN_TOPICS, PLAIN_PARTITIONS, REPLICAS)
        create_topics(bootstrap, TOPICS, PARTITIONS, REPLICAS)
        self._producers = [
            LoadProducer(f"p{number}", topic, bootstrap, self.history, idempotent=True)
            for number, topic in enumerate(PLAIN_TOPICS, 1)
        ]
        self._workers = [self._start_worker(f"id-{number}") for number in range(WORKERS)]
        self._reader = Reader("reader", bootstrap, self.history)
        self._committed_reader = CommittedReader(bootstrap, self.history, self._read_events)

    @property
    def acknowledged(self) -> int:
        return sum(producer.acknowledged for producer in self._producers)

    @property
    def committed(self) -> int:
        return sum(worker.committed for worker in (*self._workers, *self._replaced))

    # --- rounds

    def run_round(self) -> None:
        """Run one round: load, a fault, and load until every producer makes progress again."""
        self._run(self.random.uniform(*LOAD_S))
        fault = self.random.choices(list(FAULTS), list(FAULTS.values()))[0]
        self.done[fault] += 1
        victims = self._victims(fault)
        if fault.endswith("paused"):
            self._pause(victims)
        elif "cut" in fault:
            self._cut(fault, victims)
        elif fault.endswith("cleanly"):
            for node in victims:
                assert node.terminate() == 0, f"no clean stop: {node.log_text()[-3000:]}"
            self._run(self.random.uniform(*DOWN_S))
        else:
            for node in victims:
                node.kill()
            self._run(self.random.uniform(*DOWN_S), counts=len(victims) == 1)
        self._cluster.start()
        self._heal()

    def _victims(self, fault: str) -> list[NodeProcess]:
        nodes = self._cluster.nodes
        if fault.startswith("active controller"):
            return [self._cluster.node(active_controller(self._cluster))]
        count = {"two nodes killed": 2, "all nodes killed": len(nodes), "link between two nodes cut": 2}.get(fault, 1)
        return self.random.sample(nodes, count)

    def _pause(self, victims: list[NodeProcess]) -> None:
        for node in victims:
            node.pause()
        try:
            self._run(self.random.uniform(*PAUSE_S))
        finally:
            for node in victims:
                node.resume()

    def _cut(self, fault: str, victims: list[NodeProcess]) -> None:
        numbers = [self._cluster.nodes.index(node) + 1 for node in victims]
        if len(numbers) == 2:
            self._hosts.cut(*numbers)
        else:
            others = range(1, NODES + 1 + fault.endswith("from all"))
            for other in others:
                if other != numbers[0]:
                    self._hosts.cut(numbers[0], other)
        try:
            self._run(self.random.uniform(*CUT_S))
        finally:
            self._hosts.heal()

    def _heal(self) -> None:
        """Run until each producer and some worker has made progress; raise AssertionError if that takes too long."""
        before = [producer.acknowledged for producer in self._producers]
        committed, deadline = self.committed, time.monotonic() + HEAL_S_MAX
        while self.committed == committed or any(
            producer.acknowledged == count for producer, count in zip(self._producers, before, strict=True)
        ):
            assert time.monotonic() < deadline, (
                f"all nodes run, but within {HEAL_S_MAX:.0f} s not every producer made progress: "
                f"{[p.acknowledged - count for p, count in zip(self._producers, before, strict=True)]} records, "
                f"{self.committed - committed} transactions"
            )
            self._poll(counts=False)

    def _run(self, seconds: float, *, counts: bool = True) -> None:
        end = time.monotonic() + seconds
        self._last_s = time.monotonic()
        while time.monotonic() < end:
            self._poll(counts=counts)

    def _poll(self, *, counts: bool) -> None:
        for producer in self._producers:
            producer.send(self.random.randrange(BURST), self.random)
            producer.producer.poll(POLL_S)
        now_s = time.monotonic()
        if self.acknowledged != self._progress:
            self._progress, self._last_s = self.acknowledged, now_s
        elif counts:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
        self._reader.poll()
        self._committed_reader.poll(POLL_S)
        for index, worker in enumerate(self._workers):
            if worker.code not in (None, 0):
                self._replaced.append(worker)
                self._workers[index] = self._start_worker(worker.transactional_id)

    def _start_worker(self, transactional_id: str) -> WorkerProcess:
        self._names += 1
        seed = self.random.randrange(1 << 32)
        return WorkerProcess(f"w{self._names}", transactional_id, self._cluster.bootstrap, seed, self.history)

    def _read_events(self) -> None:
        for worker in (*self._workers, *self._replaced):
            worker.read_events()

    # --- the end

    def end(self) -> None:
        """Wait until every record is delivered and every transaction has ended. Raise AssertionError if one does not."""
        for worker in self._workers:
            worker.stop()
        deadline = time.monotonic() + ENDED_S_MAX
        while left := [worker.name for worker in self._workers if worker.is_running] + [
            producer.name for producer in self._producers if producer.open
        ]:
            assert time.monotonic() < deadline, f"all nodes run, but {left} could not finish"
            for producer in self._producers:
                producer.producer.poll(POLL_S)
            self._reader.poll()
            self._committed_reader.poll(POLL_S)
        while open_places := undecided(self._cluster.bootstrap, TRANSACTIONAL_PLACES):
            assert time.monotonic() < deadline, f"transactions without a producer stay open: {open_places}"
        while self._reader.poll(wait_s=1.0) + self._committed_reader.poll(1.0):
            pass

    def anomalies(self) -> list[str]:
        bootstrap = self._cluster.bootstrap
        raw = read_all(bootstrap, ALL_PLACES, UNCOMMITTED)
        committed = read_all(bootstrap, TRANSACTIONAL_PLACES, COMMITTED)
        found = [*check(self.history, FinalRead(raw)), *check_transactions(self.history, FinalRead(committed))]
        wrong = [*self._reader.wrong, *self._committed_reader.wrong, *(f"{kind}: {text}" for kind, text in found)]
        for node in self._cluster.nodes:
            wrong += [line for line in node.log_text().splitlines() if "Traceback" in line or "CRC" in line]
        return wrong

    def close(self) -> None:
        for worker in (*self._workers, *self._replaced):
            worker.close()
        for producer in self._producers:
            producer.producer.purge()
        for name in ("_reader", "_committed_reader"):
            reader = getattr(self, name, None)
            if reader is not None:
                reader.consumer.close()


def active_controller(cluster: ClusterProcesses) -> int:
    """Return the id of the node that leads the metadata quorum."""

    async def describe() -> int:
        addresses = [(node.host.address, node.port) for node in cluster.nodes if node.is_running]
        async with Cluster(addresses) as client:
            topic = DescribeQuorumRequest.TopicData(
                topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequest.PartitionData()]
            )
            response = await client.request(DescribeQuorumRequest(topics=[topic]))
            return int(response.topics[0].partitions[0].leader_id)

    return asyncio.run(describe())


def rounds_of_faults(
    hosts: NamespaceHosts, rounds: int, seed: int, print_progress: Callable[[str], None] = lambda text: None
) -> str:
    """Run the rounds from the clients' host and return a summary. Raise AssertionError with the anomalies found."""
    homes = [Host(hosts.address(number), tuple(hosts.prefix(number))) for number in range(1, NODES + 1)]
    with ClusterProcesses(NODES, SETTINGS, hosts=homes) as cluster:
        load = ClusterRounds(cluster, hosts, seed)
        try:
            load.begin()
            for number in range(rounds):
                load.run_round()
                if (number + 1) % 10 == 0:
                    print_progress(
                        f"round {number + 1}: {load.acknowledged} records acknowledged, {load.committed} transactions "
                        f"committed, longest time without a write {load.longest_gap_s:.1f} s, seed {seed}"
                    )
            load.end()
            wrong = load.anomalies()
        finally:
            load.close()
    assert not wrong, f"seed {seed}: {len(wrong)} anomalies, the first: " + "; ".join(wrong[:8])
    faults = ", ".join(f"{count} × {what}" for what, count in sorted(load.done.items()))
    return (
        f"{rounds} rounds ({faults}), {load.acknowledged} records and {load.committed} transactions acknowledged, "
        f"0 anomalies, longest time without a write {load.longest_gap_s:.1f} s (seed {seed})"
    )


def run_in_namespaces(rounds: int, seed: int, print_progress: Callable[[str], None] = lambda text: None) -> str:
    """Make the hosts, run the rounds on the one of the clients, and return their summary."""
    with NamespaceHosts(NODES + 1) as hosts:
        command = [sys.executable, "-m", "tools.prove.cluster.faults", str(rounds), str(seed), hosts.name]
        lines: list[str] = []
        with subprocess.Popen(
            [*hosts.prefix(CLIENT_HOST), *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.rstrip())
                if lines[-1].startswith("round "):
                    print_progress(lines[-1])
    assert process.returncode == 0, "\n".join(lines[-SHOWN_LINES:])
    return lines[-1]


def main(rounds: str, seed: str, network: str) -> None:
    hosts = NamespaceHosts(NODES + 1, network)
    print(rounds_of_faults(hosts, int(rounds), int(seed), lambda text: print(text, flush=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
