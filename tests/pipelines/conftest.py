"""One SparkSession for all tests of a run: a virtual machine takes longer to start than all of them to run."""

from __future__ import annotations

import warnings

import pytest


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
