"""Choosing the class with which Spark writes checkpoints."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.pipelines.fake_engine import make_pipeline

pytest.importorskip("pyspark", reason="needs the extra spark")

from headrace.pipelines.runner.checkpoint_files import BY_FILE_SYSTEM, OPTION, checkpoint_conf


def test_the_file_system_checkpoint_class_is_used_only_if_all_folders_are_local(tmp_path: Path) -> None:
    here = make_pipeline("here", folder=tmp_path)
    assert checkpoint_conf([here]) == {OPTION: BY_FILE_SYSTEM}, "this Spark has the class"
    there = replace(here, name="there", checkpoint="hdfs://there:8020/checkpoints")
    assert checkpoint_conf([here, there]) == {}, "where two machines may write, Spark's own choice sees to that"


def test_a_spark_without_the_class_keeps_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = make_pipeline("here", folder=tmp_path)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert checkpoint_conf([here]) == {}, "no jars at all"
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "spark-sql_2.13-9.0.0.jar"
    jar.write_bytes(b"no jar")
    assert checkpoint_conf([here]) == {}
    with zipfile.ZipFile(jar, "w") as classes:
        classes.writestr("org/apache/spark/sql/Other.class", b"")
    assert checkpoint_conf([here]) == {}
