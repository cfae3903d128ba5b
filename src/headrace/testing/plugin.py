"""The pytest plugin that comes with Headrace: a Kafka-compatible node for the tests of your own programs.

    def test_my_program(headrace_node):
        producer = confluent_kafka.Producer({"bootstrap.servers": headrace_node.bootstrap})

`headrace_node` is a fresh node for each test; `headrace_cluster` is one node for the whole session (give each test its own topics).
`headrace_settings`, overridden in a conftest.py, configures both. `headrace_spark` is one SparkSession for the whole session, for
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


JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
KEEP_RECORDS = {"log.retention.ms": "-1"}  # of whatever age: tests write timestamps of any year


@pytest.fixture(scope="session")
def headrace_settings() -> Mapping[str, str]:
    """Settings of the nodes below, in Kafka's names; override it to configure them."""
    return {}


@pytest.fixture
def headrace_node(headrace_settings: Mapping[str, str]) -> Iterator[EmbeddedNode]:
    """A node of its own for this test; its data goes with it."""
    from headrace.testing.cluster import EmbeddedNode

    with EmbeddedNode({**KEEP_RECORDS, **headrace_settings}) as node:
        yield node


@pytest.fixture(scope="session")
def headrace_cluster(headrace_settings: Mapping[str, str]) -> Iterator[EmbeddedNode]:
    """One node for all tests of the session."""
    from headrace.testing.cluster import EmbeddedNode

    with EmbeddedNode({**KEEP_RECORDS, **headrace_settings}) as node:
        yield node


@pytest.fixture(scope="session")
def headrace_spark() -> Iterator[SparkSession]:
    """One Spark for all tests of the session: it takes longer to start than most of them take to run."""
    from headrace.pipelines.session import make_session

    # Short jobs are done before compiling them any better pays off.
    session = make_session("headrace tests", master="local[2]", conf={"spark.driver.extraJavaOptions": JAVA_OPTIONS})
    yield session
    session.stop()
