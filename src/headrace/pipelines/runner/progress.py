"""Metrics from Spark's progress reports: rows per second, lag, and the size of the state.

Lag in time: Spark reports the end of a topic at the start of each batch. These ends show when the first unread record arrived;
for records from before the first batch, only a lower bound of their age is known.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

RATE_MS = 10_000
RATE_BATCHES_MIN = 3
HEADS_MAX = 240


@dataclass(frozen=True)
class SourceProgress:
    topics: tuple[str, ...]
    read: int  # sum of the offsets read, over all partitions
    head: int

    @property
    def lag(self) -> int:
        return max(0, self.head - self.read)


@dataclass(frozen=True)
class Batch:
    number: int
    began_ms: int
    duration_ms: int
    rows: int
    rows_out: int | None  # None: the sink does not report it
    sources: tuple[SourceProgress | None, ...]  # None: the source does not read topics
    state_rows: int
    state_bytes: int
    watermark_ms: int | None


def read_progress(reported: Mapping[str, Any]) -> Batch:
    """Parse Spark's JSON; missing or malformed values become defaults, because a listener must not fail."""
    durations, events = _mapping(reported.get("durationMs")), _mapping(reported.get("eventTime"))
    out = _number(_mapping(reported.get("sink")).get("numOutputRows"), -1)
    state_rows = state_bytes = 0
    for operator in _list(reported.get("stateOperators")):
        one = _mapping(operator)
        state_rows += _number(one.get("numRowsTotal"))
        files = _mapping(one.get("customMetrics")).get("rocksdbSstFileSize")
        state_bytes += _number(one.get("memoryUsedBytes")) + _number(files)
    return Batch(
        number=_number(reported.get("batchId"), -1),
        began_ms=_time_ms(reported.get("timestamp")) or 0,
        duration_ms=_number(durations.get("triggerExecution"), _number(reported.get("batchDuration"))),
        rows=_number(reported.get("numInputRows")),
        rows_out=out if out >= 0 else None,
        sources=tuple(_source(_mapping(one)) for one in _list(reported.get("sources"))),
        state_rows=state_rows,
        state_bytes=state_bytes,
        watermark_ms=_time_ms(events.get("watermark")),
    )


def _source(reported: Mapping[str, Any]) -> SourceProgress | None:
    read, head = _offsets(reported.get("endOffset")), _offsets(reported.get("latestOffset"))
    if not read:
        return None
    head = {one: max(offset, read.get(one, 0)) for one, offset in head.items()} or read
    # A deleted partition does not lag; a new one does, from its beginning.
    there = sum(offset for one, offset in read.items() if one in head)
    return SourceProgress(tuple(sorted({topic for topic, _ in read})), there, sum(head.values()))


def _offsets(reported: Any) -> dict[tuple[str, str], int]:
    """Parse {"topic": {"0": 12}}, given as JSON or as text of it; names that start with # are not topics."""
    if isinstance(reported, str):
        try:
            reported = json.loads(reported)
        except ValueError:
            return {}
    found: dict[tuple[str, str], int] = {}
    for topic, partitions in _mapping(reported).items():
        if topic.startswith("#") or not isinstance(partitions, Mapping):
            continue
        found |= {(topic, str(one)): offset for one, offset in partitions.items() if type(offset) is int}
    return found


def _time_ms(text: Any) -> int | None:
    if not isinstance(text, str):
        return None
    try:
        return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def _number(value: Any, otherwise: int = 0) -> int:
    return value if type(value) is int else otherwise


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


class Heads:
    """The end offsets of a source over time. When there are too many, every second one is dropped: older ones are sparser."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, int]] = []

    def add(self, at_ms: int, head: int) -> None:
        if self._seen and (head < self._seen[-1][1] or at_ms < self._seen[-1][0]):
            self._seen.clear()  # the topic was recreated, or the clock was set back
        if len(self._seen) >= 2 and head == self._seen[-1][1] == self._seen[-2][1]:
            self._seen.pop()  # no new records: keep only the first and last time with this end
        self._seen.append((at_ms, head))
        if len(self._seen) > HEADS_MAX:
            self._seen = [*self._seen[:-1:2], self._seen[-1]]

    def behind_ms(self, read: int, now_ms: int) -> int:
        """Return the age of the first record after `read`, or 0 if there is none."""
        before: tuple[int, int] | None = None
        for at_ms, head in self._seen:
            if head > read:
                return max(0, now_ms - (at_ms if before is None else _between(before, (at_ms, head), read)))
            before = (at_ms, head)
        return 0


def _between(earlier: tuple[int, int], later: tuple[int, int], read: int) -> int:
    (at_ms, head), (later_ms, later_head) = earlier, later
    return at_ms + (later_ms - at_ms) * (read - head) // (later_head - head)


@dataclass
class Meter:
    """Measures one query across restarts."""

    batches: int = 0
    rows: int = 0
    rows_out: int | None = None
    last: Batch | None = None
    _recent: deque[tuple[int, Batch]] = field(default_factory=deque)  # with the time of the report
    _heads: list[Heads] = field(default_factory=list)  # one for each source

    def add(self, batch: Batch, now_ms: int) -> None:
        self.batches += 1
        self.rows += batch.rows
        if batch.rows_out is not None:
            self.rows_out = (self.rows_out or 0) + batch.rows_out
        self.last = batch
        self._recent.append((now_ms, batch))
        self._forget(now_ms)
        while len(self._heads) < len(batch.sources):
            self._heads.append(Heads())
        for heads, source in zip(self._heads, batch.sources, strict=False):
            if source is not None:
                heads.add(batch.began_ms, source.head)

    def rows_per_s(self, now_ms: int) -> float:
        return self._per_s(now_ms, sum(batch.rows for _, batch in self._recent))

    def rows_out_per_s(self, now_ms: int) -> float | None:
        if self.rows_out is None:
            return None
        return self._per_s(now_ms, sum(batch.rows_out or 0 for _, batch in self._recent))

    @property
    def lag_records(self) -> int | None:
        """Return the unread records of all topics; None if unknown yet, or if the query reads no topics."""
        lags = [source.lag for source in self.last.sources if source is not None] if self.last is not None else []
        return sum(lags) if lags else None

    def lag_ms(self, now_ms: int) -> int | None:
        """Return the lag of the source that is furthest behind."""
        if self.last is None:
            return None
        sources = zip(self._heads, self.last.sources, strict=False)
        lags = [heads.behind_ms(source.read, now_ms) for heads, source in sources if source is not None]
        return max(lags, default=None)

    def _per_s(self, now_ms: int, rows: int) -> float:
        """Return rows per second up to now, so that the rate of a query that hangs falls."""
        if not self._recent or not rows:
            return 0.0
        reported_ms, oldest = self._recent[0]
        span_ms = now_ms - min(reported_ms, oldest.began_ms or reported_ms)
        return rows * 1000 / max(1, span_ms)

    def _forget(self, now_ms: int) -> None:
        while len(self._recent) > RATE_BATCHES_MIN and self._recent[0][0] < now_ms - RATE_MS:
            self._recent.popleft()
