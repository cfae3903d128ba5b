"""What a session is given besides what Spark finds by itself."""

from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from headrace.pipelines.data_source import HeadraceDataSource
from headrace.pipelines.session import _register


@pytest.mark.parametrize(("found", "registered"), [(True, []), (False, [HeadraceDataSource])])
def test_a_source_that_spark_did_not_find_is_registered(found, registered):
    """Spark looks once: when that process was killed, the format would be unknown for as long as the session lives."""
    seen = []
    manager = SimpleNamespace(dataSourceExists=lambda name: found and name == "headrace")
    state = SimpleNamespace(dataSourceManager=lambda: manager)
    session = SimpleNamespace(
        _jsparkSession=SimpleNamespace(sessionState=lambda: state), dataSource=SimpleNamespace(register=seen.append)
    )
    _register(session, HeadraceDataSource)
    assert seen == registered
