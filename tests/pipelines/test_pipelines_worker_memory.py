"""Objects are frozen only in Spark's workers, and only a few times."""

from __future__ import annotations

import gc
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headrace.pipelines import worker_memory


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows by one item each time objects are frozen."""
    times: list[Any] = []
    monkeypatch.setattr(worker_memory, "_times", 0)
    monkeypatch.setattr(gc, "freeze", lambda: times.append(1))
    return times


def main_module(spec_name: str | None) -> ModuleType:
    main = ModuleType("__main__")
    main.__spec__ = None if spec_name is None else SimpleNamespace(name=spec_name)  # type: ignore[assignment]
    return main


@pytest.mark.parametrize("spec_name", [None, "pytest.__main__", "pyspark.sql.streaming.python_streaming_source_runner"])
def test_objects_are_not_frozen_outside_spark_workers(
    frozen: list[Any], monkeypatch: pytest.MonkeyPatch, spec_name: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", main_module(spec_name))
    worker_memory.put_aside()
    assert frozen == []


def test_a_worker_freezes_objects_only_for_its_first_tasks(frozen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", main_module(worker_memory.DAEMON))
    for _ in range(worker_memory.TIMES_MAX + 3):
        worker_memory.put_aside()
    assert len(frozen) == worker_memory.TIMES_MAX
