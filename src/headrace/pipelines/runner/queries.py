"""The queries of a driver, the events in its queue, and the log messages about state changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.pipelines.runner.engine import Handle
from headrace.pipelines.runner.failures import Cause
from headrace.pipelines.runner.progress import Meter
from headrace.pipelines.runner.supervision import BACK_OFF_MS_MAX, State, Watched, back_off_ms

if TYPE_CHECKING:
    from headrace.pipelines.definitions.definition import Pipeline, Sink

LOG_AGAIN_EVERY = 10  # failures between repeated log messages, once the back-off is at its maximum

_LOG = logging.getLogger("headrace.pipelines")


class Query:
    """A query, shared by the driver's threads; only the thread of `run` changes it, under the driver's lock."""

    def __init__(self, pipeline: Pipeline, sink: Sink) -> None:
        self.pipeline, self.sink = pipeline, sink
        self.watched = Watched(is_bounded=pipeline.is_bounded(sink))
        self.meter = Meter()
        self.handle: Handle | None = None
        # What the last stop was for: a handle, or the title of a batch or of a query not started yet
        self.stopping: Handle | str = ""

    @property
    def run_id(self) -> str | None:
        return None if self.handle is None else self.handle.run_id


# --- events in the queue


@dataclass(frozen=True)
class QueryStarted:
    title: str
    handle: Handle | None  # None: it was a batch, and is done


@dataclass(frozen=True)
class StartFailed:
    title: str
    causes: Sequence[Cause]


@dataclass(frozen=True)
class ProgressReported:
    run_id: str
    title: str
    progress: Mapping[str, Any] | None


@dataclass(frozen=True)
class StopRequested:
    pipelines: frozenset[str] | None  # None: all of them


DriverEvent = QueryStarted | StartFailed | ProgressReported | StopRequested


# --- log messages


def log_change(title: str, before: Watched, now: Watched) -> None:
    """Log state changes, but not every one of many retries."""
    if now.is_over and not before.is_over:
        if now.state is State.FAILED:
            _LOG.error("%s: given up: %s", title, now.error)
        else:
            _LOG.info("%s: %s", title, now.state.value)
    elif now.failures > before.failures:
        wait_ms = back_off_ms(now.failures)
        if wait_ms < BACK_OFF_MS_MAX or now.error != before.error or now.failures % LOG_AGAIN_EVERY == 0:
            _LOG.warning("%s: %s; next try in %g s", title, now.error, wait_ms / 1000)
    elif before.failures and not now.failures:
        _LOG.info("%s: resumed", title)
    elif now.state is State.RUNNING and before.state is State.STARTING and not now.failures:
        _LOG.info("%s: running", title)
