"""One SparkSession for all tests of a run: a virtual machine takes longer to start than all of them to run."""

from __future__ import annotations

import warnings

import pytest


@pytest.hookimpl(tryfirst=True)  # before the plugin looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that need it in one process of several, or each of them would start its own."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


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
