"""Making the data source known to a SparkSession."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.testing.cluster import EmbeddedNode

pytest.importorskip("pyspark")

from headrace.client import Producer
from headrace.pipelines.data_source import HeadraceDataSource
from headrace.pipelines.session import _register


@pytest.mark.parametrize(("found", "registered"), [(True, []), (False, [HeadraceDataSource])])
def test_the_data_source_is_registered_unless_spark_found_it(
    found: bool, registered: list[type[HeadraceDataSource]]
) -> None:
    """Spark looks only once: if that process is killed, the session never learns the format."""
    seen: list[type[HeadraceDataSource]] = []
    manager = SimpleNamespace(dataSourceExists=lambda name: found and name == "headrace")
    state = SimpleNamespace(dataSourceManager=lambda: manager)
    session = SimpleNamespace(
        _jsparkSession=SimpleNamespace(sessionState=lambda: state), dataSource=SimpleNamespace(register=seen.append)
    )
    _register(session, HeadraceDataSource)  # type: ignore[arg-type]
    assert seen == registered


PLAIN = """
import sys
from pyspark.sql import SparkSession
from headrace.pipelines.java import cache_folder, find_java, home_for_spark
from headrace.pipelines.session import register

import os
os.environ["JAVA_HOME"] = str(home_for_spark(find_java(), cache_folder()))
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
rows = spark.read.format("headrace").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", "plain-session").load()
print("values:", [row.value.decode() for row in rows.select("value").collect()])
spark.stop()
"""


def test_register_works_in_a_plain_session_with_another_python3_on_the_path(
    headrace_node: EmbeddedNode, tmp_path: Path
) -> None:
    with Producer({"bootstrap.servers": headrace_node.bootstrap}) as producer:
        producer.send("plain-session", b"one").result(30)
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # -S hides installed packages
    other.chmod(0o755)
    # Sessions of earlier tests in this process set these.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PYTHONPATH"))}
    environment |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, headrace_node.bootstrap],
        capture_output=True,
        text=True,
        timeout=110,
        env=environment,
    )
    assert "values: ['one']" in done.stdout, done.stdout + done.stderr
