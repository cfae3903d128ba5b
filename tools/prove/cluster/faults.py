"""Rounds of faults in a cluster of three nodes under load.

Nodes are killed, paused, cut off and restarted, and members of groups are killed. After each fault the cluster heals, and all clients must
make progress again.

Each node has a network namespace of its own, and so do the clients: `run_in_namespaces` starts this module there as a program,
`python -m tools.prove.cluster.faults ROUNDS SEED NETWORK`.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from random import Random

from testkit.network_namespaces import NamespaceHosts

from headrace.testing.process_cluster import ClusterProcesses
from headrace.testing.processes import Host, NodeProcess
from tools.prove.cluster.active_controller import active_controller
from tools.prove.cluster.fault_clients import FaultClients
from tools.prove.registry import ROOT

NODES = 3
LOAD_S = (0.3, 1.5)
DOWN_S = (0.2, 4.0)
PAUSE_S = (0.2, 14.0)  # the longer ones outlast the session of a broker (9 s)
MEMBER_KILL_PROBABILITY = 0.25  # share of rounds in which a member of a group is killed too
SHOWN_LINES = 60
SETTINGS = {
    "num.partitions": "3",
    "log.segment.bytes": "1048576",
    "log.index.interval.bytes": "1024",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.num.partitions": "5",
    "offsets.topic.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "200",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
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
    """A cluster with its clients, and a fault of some of its nodes in each round."""

    def __init__(self, cluster: ClusterProcesses, hosts: NamespaceHosts, seed: int) -> None:
        self._hosts = hosts
        self._random = Random(seed)
        self._cluster = cluster
        self.clients = FaultClients(cluster.bootstrap, self._random)
        self.done: Counter[str] = Counter()

    def run_round(self) -> None:
        """Run one round: load, a fault, and load until every client makes progress again."""
        self.clients.run(self._random.uniform(*LOAD_S))
        if self._random.random() < MEMBER_KILL_PROBABILITY:
            self.clients.kill_member()
        fault = self._random.choices(list(FAULTS), list(FAULTS.values()))[0]
        self.done[fault] += 1
        victims = self._victims(fault)
        if fault.endswith("paused"):
            self._pause(victims)
        elif "cut" in fault:
            self._cut(fault, victims)
        elif fault.endswith("cleanly"):
            for node in victims:
                assert node.terminate() == 0, f"no clean stop: {node.log_text()[-3000:]}"
            self.clients.run(self._random.uniform(*DOWN_S))
        else:
            for node in victims:
                node.kill()
            self.clients.run(self._random.uniform(*DOWN_S), counts=len(victims) == 1)
        self._cluster.start()
        self.clients.run_until_healed()

    def _victims(self, fault: str) -> list[NodeProcess]:
        nodes = self._cluster.nodes
        if fault.startswith("active controller"):
            addresses = [(node.host.address, node.port) for node in nodes if node.is_running]
            return [self._cluster.node(active_controller(addresses))]
        count = {"two nodes killed": 2, "all nodes killed": len(nodes), "link between two nodes cut": 2}.get(fault, 1)
        return self._random.sample(nodes, count)

    def _pause(self, victims: list[NodeProcess]) -> None:
        for node in victims:
            node.pause()
        try:
            self.clients.run(self._random.uniform(*PAUSE_S))
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
            self.clients.run(self._random.uniform(*CUT_S))
        finally:
            self._hosts.heal()

    def anomalies(self) -> list[str]:
        wrong = self.clients.anomalies()
        for node in self._cluster.nodes:
            wrong += [line for line in node.log_text().splitlines() if "Traceback" in line or "CRC" in line]
        return wrong


def rounds_of_faults(
    hosts: NamespaceHosts, rounds: int, seed: int, print_progress: Callable[[str], None] = lambda text: None
) -> str:
    """Run the rounds from the clients' host and return a summary. Raise AssertionError with the anomalies found."""
    homes = [Host(hosts.address(number), tuple(hosts.prefix(number))) for number in range(1, NODES + 1)]
    with ClusterProcesses(NODES, SETTINGS, hosts=homes) as cluster:
        all_rounds = ClusterRounds(cluster, hosts, seed)
        clients = all_rounds.clients
        try:
            clients.begin()
            for number in range(rounds):
                all_rounds.run_round()
                if (number + 1) % 10 == 0:
                    print_progress(f"round {number + 1}: {clients.describe()}, seed {seed}")
            clients.end()
            wrong = all_rounds.anomalies()
        finally:
            clients.close()
    assert not wrong, f"seed {seed}: {len(wrong)} anomalies, the first: " + "; ".join(wrong[:8])
    faults = ", ".join(f"{count} × {what}" for what, count in sorted(all_rounds.done.items()))
    return f"{rounds} rounds ({faults}), {clients.describe()}, 0 anomalies (seed {seed})"


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
