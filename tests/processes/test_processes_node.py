"""Real node processes: starting, stopping, killing and pausing them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

import pytest
from tools.prove.storage.kill_nine import rounds_of_killing

from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Disconnected
from headrace.testing.processes import NodeProcess, ProcessFailed, free_port

ROUNDS = int(os.environ.get("HEADRACE_ROUNDS", "3"))


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with NodeProcess() as process:
        yield process


def list_topics(node: NodeProcess, timeout_s: float = 20.0, create: str | None = None) -> set[str]:
    async def topics() -> set[str]:
        async with Cluster([("127.0.0.1", node.port)], timeout_s=timeout_s) as cluster:
            if create is not None:
                await cluster.partitions(create, create=True)
            return {topic.name or "" for topic in (await cluster.refresh(None)).topics}

    return asyncio.run(topics())


def test_the_announcement_names_the_bootstrap_address(node: NodeProcess) -> None:
    assert node.announcement.endswith(f"serves on {node.bootstrap}")
    assert node.rss_bytes() > 1 << 20
    assert node.cpu_seconds() > 0


def test_topics_survive_termination_kill_and_restart(node: NodeProcess) -> None:
    list_topics(node, create="kept")
    assert node.terminate() == 0
    assert "stopped cleanly" in node.log_text()
    with pytest.raises(Disconnected):
        list_topics(node)
    assert list_topics(node.start()) == {"kept"}
    node.kill()
    assert not node.is_running
    assert list_topics(node.start()) == {"kept"}
    assert list_topics(node.restart()) == {"kept"}


def test_a_paused_node_does_not_respond_until_it_is_resumed(node: NodeProcess) -> None:
    node.pause()
    try:
        with pytest.raises((Disconnected, TimeoutError)):
            list_topics(node, timeout_s=0.3)
    finally:
        node.resume()
    assert isinstance(list_topics(node), set)


def test_a_failed_start_raises_process_failed_with_the_log(node: NodeProcess) -> None:
    second = NodeProcess({"log.dirs": str(node.data_dir)})
    with pytest.raises(ProcessFailed, match="in use by another node"):
        second.start()
    second.close()
    assert isinstance(list_topics(node), set)


def test_free_ports_are_below_the_ephemeral_range() -> None:
    assert all(free_port() < 32_768 for _ in range(20))


@pytest.mark.clients
@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_records_survive_kill_nine_under_load() -> None:
    """Run a sample of the check `kill-nine`."""
    seed = int(os.environ.get("HEADRACE_SEED", time.time_ns() % (1 << 32)))
    rounds_of_killing(ROUNDS, seed)
