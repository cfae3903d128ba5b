"""One SparkSession for all tests of a run, as a JVM takes longer to start than all of them to run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.pipelines.background import background


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    pytest.importorskip("pyspark", reason="needs the extra spark")
    from headrace.pipelines.session import make_session

    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}  # jobs are too short for C2 to pay off
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of PySpark itself
        session = make_session("headrace tests", master="local[2,3]", conf=conf)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _close_clusters() -> Iterator[None]:
    """Close the connections that a Spark process would keep for its next task."""
    yield
    background().do(background().close_clusters())
