"""Seeds of a simulated cluster: the product passes, mutations are found, and a seed is the same run everywhere."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from random import Random

import pytest
from testkit.simulator.__main__ import main
from testkit.simulator.cluster.simulation import ClusterSimulation
from testkit.simulator.loop import SimulatedLoop
from testkit.simulator.network import Network
from testkit.simulator.simulation import Trace, run_seed

# Seeds of each workload: producers, transactions, groups.
SEEDS = (1, 3, 8, 10, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_seed_finds_no_anomaly(seed: int) -> None:
    outcome = run_seed(seed, None, ClusterSimulation)
    assert (outcome.failures, outcome.anomalies) == ([], []), (
        f"python -m testkit.simulator --cluster --seed {seed} --trace"
    )
    assert outcome.acknowledged > 0 and outcome.read > 0


def test_the_sampled_seeds_have_all_workloads() -> None:
    workloads = {type(ClusterSimulation(seed, Trace(None)).workload).__name__ for seed in SEEDS}
    assert workloads == {"ProducerWorkload", "TransactionWorkload", "GroupWorkload"}


@pytest.mark.parametrize("mutation", ["commit-without-followers", "count-before-sync", "vote-before-sync"])
def test_a_planted_fault_is_found(mutation: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The others take more seeds; `cluster-mutations-found` looks for all of them."""
    assert main(["--seeds", "0-60", "--mutation", mutation]) == 1
    assert f"{mutation} was found" in capsys.readouterr().out


def test_a_cluster_seed_is_the_same_run_with_another_hash_seed() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-m", "testkit.simulator", "--cluster", "--seed", "3"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=100,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1, outputs


class Echo(asyncio.Protocol):
    """Collects what it receives; the server's end sends everything back."""

    def __init__(self, *, is_server: bool) -> None:
        self._is_server = is_server
        self.received = b""
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self._is_server:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


async def connect(loop: SimulatedLoop, host: str, port: int) -> Echo:
    """Connect from node-1 to a server of node-2."""
    source = loop.new_process("client", "node-1")
    _, protocol = await loop.spawn(source, loop.create_connection(lambda: Echo(is_server=False), host, port))
    assert isinstance(protocol, Echo)
    return protocol


async def serve(loop: SimulatedLoop, *ports: int) -> None:
    process = loop.new_process("server", "node-2")
    for port in ports:
        await loop.spawn(process, loop.create_server(lambda: Echo(is_server=True), "node-2", port))


async def echoed(client: Echo) -> bool:
    client.transport.write(b"x")
    await asyncio.sleep(1)
    return client.received == b"x"


def test_a_link_can_be_blocked_for_one_port() -> None:
    loop = SimulatedLoop(Random(1))
    network = Network(loop, Random(2))

    async def run() -> None:
        await serve(loop, 1, 2)
        blocked, other = await connect(loop, "node-2", 1), await connect(loop, "node-2", 2)
        network.block("node-1", "node-2", 1)
        assert (await echoed(blocked), await echoed(other)) == (False, True)
        with pytest.raises(OSError, match="no response"):
            await connect(loop, "node-2", 1)
        network.unblock()
        await asyncio.sleep(1)
        assert (blocked.lost, other.lost) == (True, False)
        assert await echoed(await connect(loop, "node-2", 1))

    loop.run_until_complete(run())
    loop.close()


def test_a_broken_path_concerns_some_connections_until_it_is_repaired() -> None:
    loop = SimulatedLoop(Random(1))
    network = Network(loop, Random(2))

    async def reaches() -> bool:
        try:
            return await echoed(await connect(loop, "node-2", 1))
        except OSError:
            return False

    async def run() -> None:
        await serve(loop, 1)
        old = [await connect(loop, "node-2", 1) for _ in range(20)]
        network.break_path("node-2", "node-1", 0.5, seconds=100.0)
        assert {await echoed(one) for one in old} == {True, False}
        assert {await reaches() for _ in range(10)} == {True, False}
        await asyncio.sleep(100)
        assert {await reaches() for _ in range(10)} == {True}

    loop.run_until_complete(run())
    loop.close()


def test_a_connection_can_stall_while_others_to_the_same_port_work() -> None:
    loop = SimulatedLoop(Random(1))
    network = Network(loop, Random(2))

    async def run() -> None:
        await serve(loop, 1)
        stalled, other = await connect(loop, "node-2", 1), await connect(loop, "node-2", 1)
        network.stall(network.connections_to(1)[:1], seconds=3.0)
        assert (await echoed(stalled), await echoed(other)) == (False, True)
        assert not stalled.lost
        await asyncio.sleep(3)
        assert (stalled.lost, other.lost) == (True, False)

    loop.run_until_complete(run())
    loop.close()
