"""The driver's interface to Spark: a session, starting and stopping queries, and their progress."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace.base.errors import ConfigError, HeadraceError
from headrace.base.processes import Process, process_of
from headrace.pipelines.runner.checkpoint_files import checkpoint_conf
from headrace.pipelines.runner.dead_letters import count_records
from headrace.pipelines.runner.failures import Cause, explain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from headrace.pipelines.definitions.building import Built
    from headrace.pipelines.definitions.definition import Pipeline, Sink

CAUSES_MAX = 8
FLUSH_MS_MAX = 30_000  # other listeners may delay it by ten seconds
PER_QUERY = "spark.sql."  # options that are set per query when it is built; others belong to the session
SESSION_NAME_CHARACTERS_MAX = 100
LOG_BYTES_MAX = 10 << 20  # size at which the log is renamed and a new one begun

_LOG = logging.getLogger("headrace.pipelines")


class NoSpark(HeadraceError):
    """Spark could not be started; the text says why and where to find details."""


class Handle(Protocol):
    """One start of a query."""

    @property
    def run_id(self) -> str: ...

    def is_active(self) -> bool: ...

    def causes(self) -> list[Cause]:
        """Return why the query ended; empty if it ended without an error."""

    def stop(self) -> None:
        """Stop the query; this may take as long as a batch, or until requests to brokers time out."""


# Called with the run id, the query's title or "", and the progress (None: there was nothing to do).
OnProgress = Callable[[str, str, Mapping[str, Any] | None], None]
OnJavaStarted = Callable[[Process], None]  # called when the virtual machine runs, long before Spark is ready


class Engine(Protocol):
    """What a driver needs of Spark; tests have a fake."""

    def open(self, on_progress: OnProgress, began: OnJavaStarted) -> None: ...

    @property
    def process(self) -> Process | None:
        """Return the process of Spark's virtual machine; once it has exited, the engine is unusable."""

    def start(self, pipeline: Pipeline, sink: str) -> Handle | None:
        """Start a query and return its handle, or None if it was a batch, which is then done.

        Raise any error of building or starting it. Called from several threads.
        """

    def cancel(self, title: str) -> None:
        """Cancel the batch query that `start` is running, if any."""

    def dead_letters(self, pipeline: Pipeline, sink: Sink) -> int:
        """Return the number of dead letters of this sink's query; raise HeadraceError if brokers cannot be reached."""

    def flush(self) -> None:
        """Return when all progress has been reported."""

    def close(self) -> None: ...


class SparkHandle:
    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._run_id = str(query.runId)

    @property
    def run_id(self) -> str:
        return self._run_id

    def is_active(self) -> bool:
        return bool(self._query.isActive)

    def causes(self) -> list[Cause]:
        error = self._query.exception()
        return [] if error is None else causes_of(error)

    def stop(self) -> None:
        self._query.stop()


class SparkEngine:
    def __init__(
        self, pipelines: Sequence[Pipeline], spark: SparkSession | None = None, log_file: Path | None = None
    ) -> None:
        """Create the engine. Raise ConfigError if the pipelines need different Spark settings.

        A given session stays open. Standard error of a session created here goes to `log_file`.
        """
        self._given = spark
        self._spark: SparkSession | None = None
        self._master, self._conf = settings_of(pipelines) if spark is None else ("", {})
        self._pipelines = pipelines
        self._name = ", ".join(one.name for one in pipelines)[:SESSION_NAME_CHARACTERS_MAX]
        self._log_file = log_file
        self._listener: Any = None
        self._built: dict[str, dict[str, Built]] = {}  # by pipeline, then by sink
        self._building = threading.Lock()
        self.process: Process | None = None

    def open(self, on_progress: OnProgress, began: OnJavaStarted) -> None:
        from headrace.pipelines.runner.listening import Listener
        from headrace.pipelines.session import java_process_id

        def has_begun(process_id: int) -> None:
            self.process = process_of(process_id)
            if self.process is not None:
                began(self.process)

        if self._given is None:
            self._spark = self._make_session(has_begun)
        else:
            self._spark = self._given
            has_begun(java_process_id())
        self._listener = Listener(self._spark, on_progress)
        self._spark.streams.addListener(self._listener)

    def _make_session(self, began: Callable[[int], None]) -> SparkSession:
        from headrace.pipelines.session import make_session

        try:
            with spark_log(self._log_file):
                conf = {**checkpoint_conf(self._pipelines), **self._conf}
                return make_session(self._name, master=self._master, conf=conf, began=began)
        except HeadraceError:
            raise
        except Exception as error:
            why = explain(causes_of(error)).text.splitlines()[0]
            if "stopped SparkContext" in why:
                why = "nothing responds there, or it refused the application"
            more = f"; {self._log_file} says more" if self._log_file is not None else ""
            raise NoSpark(f"Spark cannot be started with spark.master={self._master}: {why}{more}") from error

    def start(self, pipeline: Pipeline, sink: str) -> SparkHandle | None:
        assert self._spark is not None, "open comes first"
        built = self._build(pipeline)[sink]
        if not built.is_batch:
            query = built.start()
            assert query is not None
            return SparkHandle(query)
        context = self._spark.sparkContext
        context.addJobTag(_tag(built.query_name))  # tags apply to jobs of this thread
        try:
            built.start()
        finally:
            context.removeJobTag(_tag(built.query_name))
        return None

    def _build(self, pipeline: Pipeline) -> dict[str, Built]:
        """Build all queries of a pipeline once; again if the build failed."""
        from headrace.pipelines.definitions.building import build

        assert self._spark is not None
        with self._building:
            if pipeline.name not in self._built:
                self._built[pipeline.name] = {one.sink_name: one for one in build(pipeline, self._spark)}
            return self._built[pipeline.name]

    def cancel(self, title: str) -> None:
        if self._spark is not None:
            self._spark.sparkContext.cancelJobsWithTag(_tag(title))

    def dead_letters(self, pipeline: Pipeline, sink: Sink) -> int:
        return count_records(pipeline, sink)

    def flush(self) -> None:
        with suppress(Exception):  # timed out, or another Spark version
            context: Any = self._spark.sparkContext._jsc.sc()  # type: ignore[union-attr]
            context.listenerBus().waitUntilEmpty(FLUSH_MS_MAX)

    def close(self) -> None:
        spark, self._spark = self._spark, None
        if spark is None:
            return
        with suppress(Exception):  # Spark may have exited already
            spark.streams.removeListener(self._listener)
        if self._given is None:
            with suppress(Exception):
                spark.stop()


def _tag(title: str) -> str:
    return title.replace(",", ";")  # Spark does not allow commas in tags


def settings_of(pipelines: Sequence[Pipeline]) -> tuple[str, dict[str, str]]:
    """Return the master and the options of the session that all pipelines share; raise ConfigError if they conflict."""
    found: dict[str, tuple[str, str]] = {}  # value, and the first pipeline that set it
    for one in pipelines:
        for name, value in {"spark.master": one.spark.master, **one.spark.conf}.items():
            before, owner = found.setdefault(name, (value, one.name))
            if before != value and not name.startswith(PER_QUERY):
                raise ConfigError(
                    f"{name} is {before} for pipeline {owner} and {value} for {one.name}:"
                    " one driver has one Spark, so that they must be run apart"
                )
    conf = {name: value for name, (value, _) in found.items()}
    return conf.pop("spark.master"), conf


def causes_of(error: BaseException) -> list[Cause]:
    """Return an error and its chain of causes, in Java or Python."""
    found: list[Cause] = []
    one: Any = error
    while one is not None and len(found) < CAUSES_MAX:
        text = getattr(one, "_desc", None)  # without Java's stack trace, which str() may include
        found.append(Cause(type(one).__name__, str(one) if text is None else str(text)))
        one = getattr(one, "_cause", None) or one.__cause__
    return found


@contextmanager
def spark_log(path: Path | None) -> Iterator[None]:
    """Redirect the standard error of processes started inside to the file.

    It has Java's stack traces and warnings of workers. Their standard output is not redirected.
    """
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_name(f"{path.name}.1"))
    sys.stderr.flush()
    before = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(log)


def as_json(text: str) -> Mapping[str, Any]:
    """Parse Spark's progress; return an empty mapping if it is not a JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
