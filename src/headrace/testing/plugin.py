"""Headrace's pytest plugin: a Kafka-compatible node for the tests of your own programs.

    def test_my_program(headrace_node):
        producer = confluent_kafka.Producer({"bootstrap.servers": headrace_node.bootstrap})

`headrace_node` is a fresh node for each test; `headrace_session_node` is one node for the whole session (give each test its own topics);
`headrace_cluster` is a cluster of three nodes for the whole session, whose nodes a test can kill, pause and restart.
`headrace_settings`, overridden in a conftest.py, configures all of them. `headrace_spark` is one SparkSession for the whole session, for
`headrace.testing.pipelines.run_pipeline`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

# Everything else is imported when a fixture is used: this module is loaded by every pytest run that has Headrace installed.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.cluster import EmbeddedNode
    from headrace.testing.embedded_cluster import EmbeddedCluster


JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
KEEP_RECORDS = {"log.retention.ms": "-1"}  # tests write records with timestamps of any year
_clusters: list[EmbeddedCluster] = []  # the session's cluster while it runs


@pytest.fixture(scope="session")
def headrace_settings() -> Mapping[str, str]:
    """Return the settings of the nodes below, by Kafka's names; override this fixture to configure them."""
    return {}


@pytest.fixture
def headrace_node(headrace_settings: Mapping[str, str]) -> Iterator[EmbeddedNode]:
    """Start a node for this test only; its data is removed afterwards."""
    from headrace.testing.cluster import EmbeddedNode

    with EmbeddedNode({**KEEP_RECORDS, **headrace_settings}) as node:
        yield node


@pytest.fixture(scope="session")
def headrace_session_node(headrace_settings: Mapping[str, str]) -> Iterator[EmbeddedNode]:
    """Start one node for all tests of the session."""
    from headrace.testing.cluster import EmbeddedNode

    with EmbeddedNode({**KEEP_RECORDS, **headrace_settings}) as node:
        yield node


@pytest.fixture(scope="session")
def headrace_cluster(headrace_settings: Mapping[str, str]) -> Iterator[EmbeddedCluster]:
    """Start one cluster of three nodes for all tests of the session.

    Nodes that a test has killed, stopped or paused run again when the next test that uses the cluster begins.
    """
    from headrace.testing.embedded_cluster import EmbeddedCluster

    with EmbeddedCluster(settings={**KEEP_RECORDS, **headrace_settings}) as cluster:
        _clusters.append(cluster)
        yield cluster
        _clusters.remove(cluster)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the nodes of the session's cluster that an earlier test has left stopped, if this test uses it."""
    if _clusters and "headrace_cluster" in getattr(item, "fixturenames", ()):
        _clusters[0].restore()


@pytest.fixture(scope="session")
def headrace_spark() -> Iterator[SparkSession]:
    """Start one SparkSession for all tests of the session, because starting it takes longer than most tests."""
    from headrace.pipelines.session import make_session

    # Short jobs end before optimized compilation pays off.
    session = make_session("headrace tests", master="local[2]", conf={"spark.driver.extraJavaOptions": JAVA_OPTIONS})
    yield session
    session.stop()
