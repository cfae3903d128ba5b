"""Shows the progress of a run: a bar per query on a terminal if the run ends by itself, otherwise periodic log lines."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.pipelines.runner.status import QueryStatus
from headrace.pipelines.runner.supervision import State

LINES_EVERY_S = 5.0
LINES_EVERY_S_UNBOUNDED = 30.0

_LOG = logging.getLogger("headrace.pipelines")

Watch = Callable[[Sequence[QueryStatus]], None]


def how_far(status: QueryStatus) -> tuple[int, int | None]:
    """Return the rows processed and the total, or None for the total if it is unknown."""
    if status.state == State.DONE.value:
        return status.rows, status.rows
    return status.rows, None if status.lag_records is None else status.rows + status.lag_records


def line_of(status: QueryStatus) -> str:
    """Return a line such as `shop.counts: running, 12,000 of 30,000 rows, 3,400 rows/s`."""
    return f"{status.title}: {describe(status)}"


def describe(status: QueryStatus) -> str:
    done, total = how_far(status)
    parts = [status.state]
    if status.batches:
        is_open = status.is_bounded and total is not None and total != done
        parts.append(f"{done:,} of {total:,} rows" if is_open else f"{done:,} rows")
    if status.state == State.RUNNING.value and status.batches:
        parts.append(f"{status.rows_per_s:,.0f} rows/s")
        if status.lag_records and not status.is_bounded:
            parts.append(f"{status.lag_records:,} behind ({(status.lag_ms or 0) / 1000:.1f} s)")
    if status.error:
        parts.append(status.error.replace("\n", " "))
    return ", ".join(parts)


@contextmanager
def watching(is_bounded: bool, *, is_terminal: bool | None = None) -> Iterator[Watch]:
    """Return what shows the statuses: bars on standard error, or lines in the log."""
    is_terminal = sys.stderr.isatty() if is_terminal is None else is_terminal
    if not (is_terminal and is_bounded):
        yield Lines(LINES_EVERY_S if is_bounded else LINES_EVERY_S_UNBOUNDED)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[details]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield Bars(bars)


class Lines:
    def __init__(
        self,
        every_s: float,
        now: Callable[[], float] = time.monotonic,
        write_line: Callable[[str], None] = _LOG.info,
    ) -> None:
        self._every_s, self._now, self._write_line = every_s, now, write_line
        self._next = now() + every_s
        self._rows = 0

    def __call__(self, statuses: Sequence[QueryStatus]) -> None:
        """Log a line per query at most every `every_s` seconds, and only if rows have been read."""
        rows = sum(one.rows for one in statuses)
        if self._now() < self._next or rows == self._rows:
            return
        self._next, self._rows = self._now() + self._every_s, rows
        for one in statuses:
            self._write_line(line_of(one))


class Bars:
    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def __call__(self, statuses: Sequence[QueryStatus]) -> None:
        for one in statuses:
            if one.title not in self._tasks:
                self._tasks[one.title] = self._bars.add_task(one.title, total=None, details="")
            done, total = (1, 1) if one.state == State.DONE.value else how_far(one)
            self._bars.update(self._tasks[one.title], completed=done, total=total, details=describe(one))
