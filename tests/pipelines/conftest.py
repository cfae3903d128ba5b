"""One SparkSession for all tests of a run: a virtual machine takes longer to start than all of them to run."""

from __future__ import annotations

import warnings

import pytest

from headrace.pipelines.background import background


@pytest.fixture(scope="session")
def spark():
    pytest.importorskip("pyspark", reason="needs the extra spark")
    from headrace.pipelines.session import make_session

    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}  # short jobs are done before more pays off
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        session = make_session("headrace tests", master="local[2,3]", conf=conf)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _clusters_closed():
    """A process of Spark's keeps its connections for the next task; a test does not."""
    yield
    background().do(background().close_clusters())
