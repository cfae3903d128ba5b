"""A scripted Spark engine and a pipeline without files, for testing drivers without a JVM."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.base.processes import Process
from headrace.pipelines.definitions.definition import (
    BadRecords,
    Pipeline,
    Place,
    Sink,
    SinkKind,
    Source,
    SourceKind,
    SparkSettings,
    Trigger,
    TriggerKind,
)
from headrace.pipelines.runner.failures import Cause

LOCATION = Place(Path("shop.yaml"), 1)


def make_pipeline(
    name: str = "shop",
    sinks: tuple[str, ...] = ("counts",),
    *,
    folder: Path,
    once: bool = False,
    stream: bool = True,
    bad: BadRecords | None = None,
    master: str = "local[1]",
    spark: Mapping[str, str] | None = None,
) -> Pipeline:
    source = Source(
        name="orders",
        where=LOCATION,
        kind=SourceKind.TOPIC,
        target="orders",
        is_stream=stream,
        bad_records=bad or BadRecords(),
    )
    return Pipeline(
        name=name,
        where=LOCATION,
        origin=LOCATION.file,
        settings={},
        spark=SparkSettings(master, dict(spark or {})),
        checkpoint=str(folder / "checkpoints" / name),
        sources={"orders": source},
        steps={},
        sinks={
            sink: Sink(name=sink, where=LOCATION, kind=SinkKind.TOPIC, source="orders", target=sink) for sink in sinks
        },
        trigger=Trigger(TriggerKind.AVAILABLE_NOW if once else TriggerKind.INTERVAL),
    )


class FakeHandle:
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.active = True
        self.failure_causes: list[Cause] = []
        self.stops = 0

    def is_active(self) -> bool:
        return self.active

    def causes(self) -> list[Cause]:
        return self.failure_causes

    def stop(self) -> None:
        self.stops += 1
        self.active = False

    # --- controls for tests

    def fail(self, kind: str, text: str) -> None:
        self.failure_causes = [Cause(kind, text)]
        self.active = False

    def end(self) -> None:
        self.active = False


class FakeEngine:
    """An engine whose queries do what the test says.

    `on_start(title, handle)` is called in the thread that starts the query, and may raise; its result stands for the query.
    """

    def __init__(self, on_start: Callable[..., Any] = lambda title, handle: handle) -> None:
        self.on_start = on_start
        self.process: Process | None = None
        self.report: Callable[..., Any] | None = None
        self.handles: dict[str, FakeHandle] = {}  # handle of the latest start, by query title
        self.starts: list[str] = []
        self.cancelled: list[str] = []
        self.is_closed = False
        self.dead_letter_count = 0  # number of records in every query's dead-letter topic
        self._ids = itertools.count()
        self._changed = threading.Condition()

    def open(self, report: Callable[..., Any], began: Callable[..., Any]) -> None:
        self.report = report
        if self.process is not None:
            began(self.process)

    def start(self, pipeline: Pipeline, sink: str) -> FakeHandle | None:
        title = pipeline.query_of(pipeline.sinks[sink])
        handle = FakeHandle(f"run-{next(self._ids)}")
        with self._changed:
            self.starts.append(title)
            self.handles[title] = handle
            self._changed.notify_all()
        return self.on_start(title, handle)

    def cancel(self, title: str) -> None:
        self.cancelled.append(title)

    def dead_letters(self, pipeline: Pipeline, sink: Sink) -> int:
        return self.dead_letter_count

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    # --- controls for tests

    def started(self, count: int) -> FakeHandle:
        """Wait until `count` starts were made and return the handle of the last one."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.starts) >= count, 10)
            return self.handles[self.starts[-1]]

    def progress(
        self, handle: FakeHandle, rows: int = 10, batch: int = 0, end: int = 10, latest: int = 10, title: str = ""
    ) -> None:
        event = {
            "batchId": batch,
            "timestamp": "2026-01-01T00:00:00.000Z",
            "numInputRows": rows,
            "durationMs": {"triggerExecution": 120},
            "sources": [{"endOffset": {"orders": {"0": end}}, "latestOffset": {"orders": {"0": latest}}}],
            "sink": {"numOutputRows": rows},
            "stateOperators": [],
        }
        self.report(handle.run_id, title, event)
