"""The queries of a driver, as its threads see them; what is put into its queue; what is said of them."""

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

TOLD_AGAIN_EVERY = 10  # failures, once the back-off is at its longest

_LOG = logging.getLogger("headrace.pipelines")


class Query:
    """Shared by the threads; only the one of `run` changes it, under the driver's lock."""

    def __init__(self, pipeline: Pipeline, sink: Sink) -> None:
        self.pipeline, self.sink = pipeline, sink
        self.watched = Watched(is_bounded=pipeline.is_bounded(sink))
        self.meter = Meter()
        self.handle: Handle | None = None
        self.stop_told: Handle | str = ""  # whom, last; a title for what is no stream, or not started yet

    @property
    def run_id(self) -> str | None:
        return None if self.handle is None else self.handle.run_id


# --- what the queue holds


@dataclass(frozen=True)
class Began:
    title: str
    handle: Handle | None  # None: it was no stream, and is done


@dataclass(frozen=True)
class Broke:
    title: str
    causes: Sequence[Cause]


@dataclass(frozen=True)
class Told:
    run_id: str
    title: str
    progress: Mapping[str, Any] | None


@dataclass(frozen=True)
class StopWanted:
    pipelines: frozenset[str] | None  # None: all


Happening = Began | Broke | Told | StopWanted


# --- what is said


def say(title: str, before: Watched, now: Watched) -> None:
    """Only what changes, and not each of many tries."""
    if now.is_over and not before.is_over:
        if now.state is State.FAILED:
            _LOG.error("%s: given up: %s", title, now.error)
        else:
            _LOG.info("%s: %s", title, now.state.value)
    elif now.failures > before.failures:
        wait_ms = back_off_ms(now.failures)
        if wait_ms < BACK_OFF_MS_MAX or now.error != before.error or now.failures % TOLD_AGAIN_EVERY == 0:
            _LOG.warning("%s: %s; next try in %g s", title, now.error, wait_ms / 1000)
    elif before.failures and not now.failures:
        _LOG.info("%s: goes on", title)
    elif now.state is State.RUNNING and before.state is State.STARTING and not now.failures:
        _LOG.info("%s: running", title)
