"""Runs the queries of pipelines: starts them, follows their progress, restarts those that fail, and stops all on request.

All events go through one queue and are handled by the thread that called `run`; other threads do the slow work (starting and stopping
queries). `supervision` makes the decisions.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigError, HeadraceError
from headrace.base.processes import is_alive, this_process
from headrace.pipelines.runner.control import Control
from headrace.pipelines.runner.dead_letters import DeadLetterCounter, dead_letter_topics
from headrace.pipelines.runner.engine import Engine, Handle, SparkEngine, causes_of
from headrace.pipelines.runner.failures import Cause, explain
from headrace.pipelines.runner.progress import read_progress
from headrace.pipelines.runner.queries import (
    DriverEvent,
    ProgressReported,
    Query,
    QueryStarted,
    StartFailed,
    StopRequested,
    log_change,
)
from headrace.pipelines.runner.runs import Run, Runs, locked
from headrace.pipelines.runner.signals import interrupted_by_signals, stopped_by_signals
from headrace.pipelines.runner.status import QueryStatus, status_of
from headrace.pipelines.runner.supervision import (
    Done,
    Ended,
    Event,
    Failed,
    Progressed,
    Start,
    Started,
    Starting,
    Stop,
    StopRequest,
    Wait,
    act_of,
    after,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipelines.definitions.definition import Pipeline

LOOK_S = 0.5  # interval at which queries are polled for whether they still run
STOP_S_MAX = 60.0
EVENTS_MAX = 10_000  # limit of the queue; progress beyond it is dropped
RUNTIME = Path(".headrace")
SPARK_LOG = "spark.log"

_LOG = logging.getLogger("headrace.pipelines")


class SparkLost(HeadraceError):
    """Spark's virtual machine has exited, and all queries with it."""


class Driver:
    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        *,
        spark: SparkSession | None = None,
        runtime: Path = RUNTIME,
        engine: Engine | None = None,
        port: int = 0,
        ticks_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        watch: Callable[[Sequence[QueryStatus]], None] | None = None,
    ) -> None:
        """Create a driver for one `run`.

        A given session is used and stays open. `port` serves status and metrics; `watch` is called with all statuses from time to time.
        Waits are measured in ticks, because a clock may jump.
        """
        if not pipelines:
            raise ConfigError("there is no pipeline to run")
        self._pipelines = list(pipelines)
        self._log_file = runtime / SPARK_LOG
        self._engine = engine or SparkEngine(pipelines, spark, self._log_file)
        self._runs = Runs(runtime)
        self._port = port
        self._clock = SystemClock()
        self._ticks_ms = ticks_ms
        self._watch = watch
        self._queries = {
            pipeline.query_of(sink): Query(pipeline, sink) for pipeline in pipelines for sink in pipeline.sinks.values()
        }
        self._letters = DeadLetterCounter(
            {
                title: partial(self._engine.dead_letters, query.pipeline, query.sink)
                for title, query in self._queries.items()
                if dead_letter_topics(query.pipeline, query.sink)
            }
        )
        self._events: SimpleQueue[DriverEvent] = SimpleQueue()
        self._lock = threading.Lock()
        self._stop_deadline: float | None = None
        self._claims: dict[str, ExitStack] = {}  # the claims of pipelines until they are released
        self._stopping: set[str] = set()

    def status(self) -> list[QueryStatus]:
        """Return the status of all queries; callable from any thread."""
        now_ms, ticks_ms = self._clock.now_ms(), self._ticks_ms()
        with self._lock:
            return [
                replace(
                    status_of(query.sink.name, query.pipeline.name, query.watched, query.meter, now_ms, ticks_ms),
                    dead_letters=self._letters.of(title),
                )
                for title, query in self._queries.items()
            ]

    def stop(self, pipelines: Collection[str] | None = None) -> None:
        """Stop all pipelines, or these; callable from any thread or signal handler. `run` returns when all queries have ended."""
        self._events.put(StopRequested(None if pipelines is None else frozenset(pipelines)))

    def run(self) -> list[QueryStatus]:
        """Run until all queries are done, stopped or failed; raise AlreadyRunning if another driver runs one of the pipelines."""
        with ExitStack() as stack:
            stack.enter_context(interrupted_by_signals())
            token = secrets.token_urlsafe()
            control = Control(self.status, self.stop, token, self._port)
            stack.callback(control.close)
            runs = self._claim(stack, control.port, token)
            stack.callback(self._engine.close)
            self._letters.start()  # before Spark, so that the first count has only earlier records
            stack.callback(self._letters.close)
            _LOG.info("%s: Spark is starting", ", ".join(run.pipeline for run in runs))
            self._engine.open(
                self._report, lambda spark: self._runs.update([replace(run, spark=spark) for run in runs])
            )
            stack.enter_context(stopped_by_signals(self.stop))
            self._loop()
            self._engine.flush()  # the last batches are reported after their query has ended
            self._take_what_is_there()
            self._letters.close()
            self._show()
        return self.status()

    def _claim(self, stack: ExitStack, port: int, token: str) -> list[Run]:
        driver = this_process()
        runs: list[Run] = []
        for one in self._pipelines:
            claim = stack.enter_context(ExitStack())
            run = Run(
                pipeline=one.name,
                driver=driver,
                port=port,
                token=token,
                started_ms=self._clock.now_ms(),
                origin=str(one.origin),
                checkpoint=one.checkpoint,
            )
            self._runs.claim(run)
            claim.callback(self._runs.release, run)
            claim.enter_context(locked(one.name, one.checkpoint, driver))
            self._claims[one.name] = claim
            runs.append(run)
        return runs

    # --- the thread of `run`

    def _loop(self) -> None:
        while True:
            self._take_events()
            self._look_at_queries()
            self._act()
            self._let_go()
            self._show()
            if all(query.watched.is_over for query in self._queries.values()):
                return
            if self._stop_deadline is not None and time.monotonic() > self._stop_deadline:
                self._leave_the_rest()
                return

    def _show(self) -> None:
        if self._watch is not None:
            self._watch(self.status())

    def _take_events(self) -> None:
        """Handle all queued events, waiting for the first one until an action is due."""
        now_ms = self._ticks_ms()
        wait_s = LOOK_S
        for query in self._queries.values():
            act = act_of(query.watched, now_ms)
            if isinstance(act, Start):
                wait_s = 0.0
            elif isinstance(act, Wait) and act.until_ms is not None:
                wait_s = min(wait_s, (act.until_ms - now_ms) / 1000)
        if wait_s > 0:
            try:
                self._take(self._events.get(timeout=wait_s))
            except Empty:
                return
        self._take_what_is_there()

    def _take_what_is_there(self) -> None:
        for _ in range(self._events.qsize()):
            self._take(self._events.get())

    def _take(self, event: DriverEvent) -> None:
        match event:
            case QueryStarted(title, handle):
                query = self._queries[title]
                query.handle = handle
                self._handle(title, Done() if handle is None else Started())
            case StartFailed(title, causes):
                self._failed(title, causes)
            case ProgressReported():
                self._handle_progress(event)
            case StopRequested(pipelines):
                self._request_stop(pipelines)

    def _request_stop(self, pipelines: frozenset[str] | None) -> None:
        names = {one.name for one in self._pipelines}
        self._stopping |= names if pipelines is None else names & pipelines
        for title, query in self._queries.items():
            if query.pipeline.name in self._stopping:
                self._handle(title, StopRequest())
        if self._stopping == names and self._stop_deadline is None:
            self._stop_deadline = time.monotonic() + STOP_S_MAX

    def _handle_progress(self, reported: ProgressReported) -> None:
        current = next((one for one, query in self._queries.items() if query.run_id == reported.run_id), None)
        title = current or reported.title
        query = self._queries.get(title)
        if query is None:
            return  # a query of another user of the same session
        if reported.progress is not None:
            batch = read_progress(reported.progress)
            with self._lock:
                query.meter.add(batch, self._clock.now_ms())
        if current is not None:
            self._handle(title, Progressed())

    def _look_at_queries(self) -> None:
        """Check which queries have ended, by polling: Spark may drop listener events under load."""
        process = self._engine.process
        if process is not None and not is_alive(process):
            raise SparkLost(
                f"Spark's virtual machine (process {process.pid}) has ended; see {self._log_file}."
                " Run it again: it resumes from its checkpoints"
            )
        for title, query in self._queries.items():
            if query.handle is None:
                continue
            try:
                if query.handle.is_active():
                    continue
                causes = query.handle.causes()
            except Exception as error:  # Spark cannot be reached, perhaps because it is about to exit
                causes = causes_of(error)
            query.handle = None
            if causes:
                self._failed(title, causes)
            else:
                self._handle(title, Ended())

    def _act(self) -> None:
        now_ms = self._ticks_ms()
        for title, query in self._queries.items():
            match act_of(query.watched, now_ms):
                case Start():
                    self._handle(title, Starting())
                    _in_thread(f"start {title}", lambda query=query, title=title: self._start(title, query))  # type: ignore[misc]
                case Stop() if query.stopping != (query.handle or title):
                    query.stopping = query.handle or title
                    _in_thread(f"stop {title}", lambda whom=query.stopping: self._stop(whom))  # type: ignore[misc]

    def _let_go(self) -> None:
        """Release stopped pipelines, so that another driver can run them while this one continues with the others."""
        for name in [name for name in self._stopping if name in self._claims]:
            if all(query.watched.is_over for query in self._queries.values() if query.pipeline.name == name):
                self._claims.pop(name).close()

    def _failed(self, title: str, causes: Sequence[Cause]) -> None:
        query = self._queries[title]
        found = explain(causes, query.pipeline.checkpoint_of(query.sink))
        self._handle(title, Failed(found.text, found.permanence))

    def _handle(self, title: str, event: Event) -> None:
        query = self._queries[title]
        before = query.watched
        with self._lock:
            query.watched = after(before, event, self._ticks_ms())
        log_change(title, before, query.watched)

    def _leave_the_rest(self) -> None:
        for title, query in self._queries.items():
            if not query.watched.is_over:
                _LOG.warning("%s did not stop within %g s; leaving it", title, STOP_S_MAX)
                self._handle(title, Ended())

    # --- other threads

    def _start(self, title: str, query: Query) -> None:
        try:
            self._events.put(QueryStarted(title, self._engine.start(query.pipeline, query.sink.name)))
        except Exception as error:
            _LOG.debug("%s could not be started", title, exc_info=True)
            self._events.put(StartFailed(title, causes_of(error)))

    def _stop(self, whom: Handle | str) -> None:
        try:
            if isinstance(whom, str):
                self._engine.cancel(whom)
            else:
                whom.stop()
        except Exception:  # polling shows whether it has ended
            _LOG.debug("it could not be stopped", exc_info=True)

    def _report(self, run_id: str, title: str, progress: Mapping[str, Any] | None) -> None:
        if self._events.qsize() < EVENTS_MAX:
            self._events.put(ProgressReported(run_id, title, progress))


def _in_thread(name: str, work: Callable[[], None]) -> None:
    """Run the work in a daemon thread: if it hangs, it must not prevent the process from exiting."""
    threading.Thread(target=work, name=name, daemon=True).start()
