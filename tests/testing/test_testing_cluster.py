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


def topics_of(node: EmbeddedNode, *, create: str | None = None) -> set[str]:
    async def ask() -> set[str]:
        async with Cluster([("127.0.0.1", node.port)]) as cluster:
            if create is not None:
                await cluster.partitions(create, create=True)
            return {topic.name or "" for topic in (await cluster.refresh(None)).topics}

    return asyncio.run(ask())


def test_the_fixture_gives_a_node_that_serves(headrace_node: EmbeddedNode) -> None:
    assert topics_of(headrace_node, create="mine") == {"mine"}


def test_each_test_has_a_node_of_its_own(headrace_node: EmbeddedNode, headrace_cluster: EmbeddedNode) -> None:
    assert headrace_node.bootstrap != headrace_cluster.bootstrap
    assert topics_of(headrace_node) == set()


def test_data_survives_stop_kill_and_restart() -> None:
    with EmbeddedNode({"num.partitions": "2"}) as node:
        port = node.port
        assert topics_of(node, create="kept") == {"kept"}
        assert topics_of(node.restart()) == {"kept"}
        node.kill()
        assert topics_of(node.start()) == {"kept"}
        assert node.port == port


def test_nothing_is_left_behind() -> None:
    before = set(threading.enumerate())
    with EmbeddedNode() as node:
        directory = node.data_dir
        assert directory.is_dir()
    assert not directory.exists()
    assert set(threading.enumerate()) <= before
    node.stop()  # a second stop does nothing


def test_a_given_directory_stays(tmp_path: Path) -> None:
    with EmbeddedNode(data_dir=tmp_path / "data"):
        pass
    assert (tmp_path / "data" / "meta.properties").exists()


def test_a_node_that_cannot_be_says_why(tmp_path: Path) -> None:
    with EmbeddedNode(data_dir=tmp_path), pytest.raises(ConfigError, match="in use by another node"):
        EmbeddedNode(data_dir=tmp_path).start()
    with pytest.raises(ConfigError, match=r"process\.roles"):
        EmbeddedNode({"process.roles": "broker"}).start()


def test_the_plugin_is_cheap_to_load() -> None:
    """Every pytest run in an environment with Headrace imports the plugin."""
    code = "import sys, headrace.testing.plugin; print([n for n in sys.modules if n.startswith('headrace.')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.strip() == "['headrace.testing', 'headrace.testing.plugin']"


def test_the_plugin_works_in_somebody_elses_project(pytester: pytest.Pytester) -> None:
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
