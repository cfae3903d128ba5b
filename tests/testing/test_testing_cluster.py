"""The embedded node and its pytest plugin, as users get them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.client.wire.cluster import Cluster
from headrace.testing.cluster import EmbeddedNode

pytest_plugins = ["pytester"]


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
    headrace_node: EmbeddedNode, headrace_cluster: EmbeddedNode
) -> None:
    assert headrace_node.bootstrap != headrace_cluster.bootstrap
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
        """
    )
    outcome = pytester.runpytest_subprocess("-p", "no:randomly", timeout=60)
    outcome.assert_outcomes(passed=1)
