"""The status of a query, as shown to users: as JSON, as a table row, and as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from headrace.base.metrics import Metrics
from headrace.pipelines.runner.progress import Meter
from headrace.pipelines.runner.supervision import State, Watched

GONE = "gone"  # state of a pipeline whose driver was killed: its file exists, its process does not


@dataclass(frozen=True, kw_only=True)
class QueryStatus:
    """The state and progress of one query. Times are in milliseconds, rates in rows per second."""

    name: str  # name of the sink
    pipeline: str
    state: str  # waiting, starting, running, stopping, done, stopped or failed; gone if the driver does not report it
    is_bounded: bool = False  # whether the query ends by itself
    rows_per_s: float = 0.0
    rows_out_per_s: float | None = None  # None here and below: not reported, or not yet
    lag_records: int | None = None  # unread records of all topics
    lag_ms: int | None = None  # age of the first unread record
    state_rows: int = 0  # rows that the query keeps as state
    state_bytes: int = 0  # size of the state in memory and files
    batches: int = 0  # batches, rows and rows_out count from the start of the driver
    rows: int = 0
    rows_out: int | None = None
    dead_letters: int | None = None  # records since then; None if no source has a dead-letter topic
    batch_ms: int | None = None  # duration of the last batch
    watermark_ms: int | None = None  # since the epoch
    restarts: int = 0  # starts after the first
    next_start_in_ms: int | None = None  # set while the query waits after a failure
    error: str = ""  # the latest failure; cleared by progress

    @property
    def title(self) -> str:
        """Return the name of the query in Spark and in logs: `pipeline.name`."""
        return f"{self.pipeline}.{self.name}"


def status_of(name: str, pipeline: str, query: Watched, meter: Meter, now_ms: int, ticks_ms: int) -> QueryStatus:
    """Return the status; `now_ms` is the wall-clock time, as in Spark's reports, `ticks_ms` the time of supervision."""
    last = meter.last
    is_waiting = query.state is State.WAITING and query.failures > 0
    return QueryStatus(
        name=name,
        pipeline=pipeline,
        state=query.state.value,
        is_bounded=query.is_bounded,
        rows_per_s=round(meter.rows_per_s(now_ms), 1) if not query.is_over else 0.0,
        rows_out_per_s=_rounded(meter.rows_out_per_s(now_ms)) if not query.is_over else None,
        lag_records=meter.lag_records,
        lag_ms=meter.lag_ms(now_ms),
        state_rows=last.state_rows if last is not None else 0,
        state_bytes=last.state_bytes if last is not None else 0,
        batches=meter.batches,
        rows=meter.rows,
        rows_out=meter.rows_out,
        batch_ms=last.duration_ms if last is not None else None,
        watermark_ms=last.watermark_ms if last is not None else None,
        restarts=query.restarts,
        next_start_in_ms=max(0, query.due_ms - ticks_ms) if is_waiting else None,
        error=query.error,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def to_json(status: QueryStatus) -> dict[str, Any]:
    return asdict(status)


def from_json(found: Mapping[str, Any]) -> QueryStatus:
    """Parse the status from a driver that may be older or newer; missing fields get their defaults."""
    known = {one.name for one in fields(QueryStatus)}
    given = {name: value for name, value in found.items() if name in known}
    return QueryStatus(**{"name": "", "pipeline": "", "state": GONE, **given})


_GAUGES = (
    ("rows_per_second", "rows_per_s", 1, "rows read a second, over the last batches"),
    ("lag_records", "lag_records", 1, "records that were there when the last batch began and are not read yet"),
    ("lag_seconds", "lag_ms", 1000, "age of the first record that is not read yet"),
    ("state_rows", "state_rows", 1, "rows in the state of the query"),
    ("state_bytes", "state_bytes", 1, "bytes of the state, in memory and in RocksDB's files"),
    ("batch_seconds", "batch_ms", 1000, "how long the last batch took"),
)
_COUNTERS = (
    ("rows_total", "rows", "rows read since the driver was started"),
    ("rows_out_total", "rows_out", "rows written since the driver was started"),
    ("batches_total", "batches", "batches since the driver was started"),
    ("restarts_total", "restarts", "starts after the first"),
    ("dead_letters_total", "dead_letters", "records that could not be decoded and were put aside"),
)


def metrics_of(statuses: Sequence[QueryStatus]) -> Metrics:
    metrics = Metrics()
    for one in statuses:
        labels = {"pipeline": one.pipeline, "query": one.name}
        for state in State:
            is_it = float(one.state == state.value)
            help = "1 for the state in which the query is, 0 for all others"
            metrics.gauge("headrace_pipeline_state", help, lambda is_it=is_it: is_it, **labels, state=state.value)  # type: ignore[misc]
        for name, attribute, unit, help in _GAUGES:
            value = getattr(one, attribute)
            if value is not None:
                scaled = value / unit
                metrics.gauge(f"headrace_pipeline_{name}", help, lambda scaled=scaled: scaled, **labels)  # type: ignore[misc]
        for name, attribute, help in _COUNTERS:
            count = getattr(one, attribute)
            if count is not None:
                metrics.counter(f"headrace_pipeline_{name}", help, **labels).value = count
    return metrics
