"""The embedded node and its pytest plugin, as users get them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.client import Admin, Producer
from headrace.client.wire.cluster import Cluster
from headrace.testing.cluster import EmbeddedNode
from headrace.testing.embedded_cluster import EmbeddedCluster

pytest_plugins = ["pytester"]
WAIT_S_MAX = 60.0
ROOT = Path(__file__).parents[2]


def topic_names(node: EmbeddedNode, *, create: str | None = None) -> set[str]:
    async def fetch_names() -> set[str]:
        async with Cluster([("127.0.0.1", node.port)]) as cluster:
            if create is not None:
                await cluster.partitions(create, create=True)
            return {topic.name or "" for topic in (await cluster.refresh(None)).topics}

    return asyncio.run(fetch_names())


def test_the_node_fixture_provides_a_running_node(headrace_node: EmbeddedNode) -> None:
    assert topic_names(headrace_node, create="mine") == {"mine"}


def test_the_node_fixture_starts_a_separate_empty_node(
    headrace_node: EmbeddedNode, headrace_session_node: EmbeddedNode
) -> None:
    assert headrace_node.bootstrap != headrace_session_node.bootstrap
    assert topic_names(headrace_node) == set()


def test_data_survives_stop_kill_and_restart() -> None:
    with EmbeddedNode({"num.partitions": "2"}) as node:
        port = node.port
        assert topic_names(node, create="kept") == {"kept"}
        assert topic_names(node.restart()) == {"kept"}
        node.kill()
        assert topic_names(node.start()) == {"kept"}
        assert node.port == port


def test_stopping_a_node_removes_its_directory_and_threads() -> None:
    before = set(threading.enumerate())
    with EmbeddedNode() as node:
        directory = node.data_dir
        assert directory.is_dir()
    assert not directory.exists()
    assert set(threading.enumerate()) <= before
    node.stop()  # a second stop does nothing


def test_a_data_directory_given_by_the_caller_is_kept(tmp_path: Path) -> None:
    with EmbeddedNode(data_dir=tmp_path / "data"):
        pass
    assert (tmp_path / "data" / "meta.properties").exists()


def test_a_directory_in_use_or_a_missing_role_raises_config_error(tmp_path: Path) -> None:
    with EmbeddedNode(data_dir=tmp_path), pytest.raises(ConfigError, match="in use by another node"):
        EmbeddedNode(data_dir=tmp_path).start()
    with pytest.raises(ConfigError, match=r"process\.roles"):
        EmbeddedNode({"process.roles": "broker"}).start()


def test_importing_the_plugin_imports_no_other_headrace_module() -> None:
    """Every pytest run in an environment with Headrace imports the plugin."""
    code = "import sys, headrace.testing.plugin; print([n for n in sys.modules if n.startswith('headrace.')])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert output.strip() == "['headrace.testing', 'headrace.testing.plugin']"


def test_the_plugin_works_in_another_project(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import socket

        def test_program(headrace_node):
            host, port = headrace_node.bootstrap.split(":")
            socket.create_connection((host, int(port)), 5).close()

        def test_a_kill(headrace_cluster):
            headrace_cluster.node(2).kill()
            headrace_cluster.node(3).pause()

        def test_after_the_kill(headrace_cluster):
            for address in headrace_cluster.bootstrap.split(","):
                host, port = address.split(":")
                socket.create_connection((host, int(port)), 5).close()
            assert all(node.is_running for node in headrace_cluster.nodes)
        """
    )
    outcome = pytester.runpytest_subprocess("-p", "no:randomly", timeout=100)
    outcome.assert_outcomes(passed=3)


def test_the_example_of_tests_with_failing_nodes_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile((ROOT / "examples" / "test_failures.py").read_text())
    outcome = pytester.runpytest_subprocess("-p", "no:randomly", timeout=100)
    outcome.assert_outcomes(passed=2)


# --- a cluster of nodes


def replicas_of(cluster: EmbeddedCluster, topic: str) -> tuple[list[int], list[int]]:
    """Return the replicas and the in-sync replicas of partition 0."""
    running = ",".join(node.bootstrap for node in cluster.nodes if node.is_running)
    with Admin({"bootstrap.servers": running}) as admin:
        found = admin.describe_topics([topic], timeout_s=WAIT_S_MAX)[topic]
    return sorted(found.partitions[0].replicas), sorted(found.partitions[0].isr)


def write(cluster: EmbeddedCluster, topic: str) -> int:
    with Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"}) as producer:
        return producer.send(topic, b"value", partition=0).result(WAIT_S_MAX).offset


def test_three_nodes_of_a_cluster_replicate() -> None:
    # Not with the fixture, which lives until the end of the session: a cluster logs and opens connections during other tests.
    with EmbeddedCluster() as cluster:
        assert len(cluster.bootstrap.split(",")) == 3
        assert write(cluster, "replicated") == 0
        assert replicas_of(cluster, "replicated")[0] == [1, 2, 3]


def test_a_paused_node_does_nothing_until_it_is_resumed(headrace_node: EmbeddedNode) -> None:
    order: list[str] = []
    done = threading.Event()
    headrace_node.pause()
    for call in (lambda: order.append("node"), done.set):
        headrace_node.node._ports.loop.call_soon_threadsafe(call)
    order.append("test")
    headrace_node.resume()
    assert done.wait(WAIT_S_MAX) and order == ["test", "node"]
    headrace_node.resume()  # does nothing
    headrace_node.pause()
    headrace_node.kill()  # ends the pause
    assert not headrace_node.is_running


def test_a_cluster_that_cannot_start_leaves_nothing_behind() -> None:
    cluster = EmbeddedCluster(settings={"process.roles": "broker"})
    with pytest.raises(ConfigError, match="listeners: CONTROLLER"):
        cluster.start()
    assert not any(node.is_running for node in cluster.nodes) and not cluster.node(1).data_dir.exists()
