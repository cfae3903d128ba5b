"""The definition of a pipeline, whether written in YAML or Python: named sources, steps and sinks, each with its place in a file.

Paths are already resolved, and texts are as given: nothing here reads files or talks to brokers or Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from headrace.base.errors import HeadraceError

BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"


@dataclass(frozen=True)
class Place:
    file: Path
    line: int = 0  # line number, from 1; 0: the file as a whole

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else str(self.file)


@dataclass(frozen=True)
class Problem:
    where: Place
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class DefinitionError(HeadraceError):
    """Pipelines that cannot be run as written: lists all problems, one per line, as `file:line: what`."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems
        self.problems = tuple(sorted(dict.fromkeys(problems), key=lambda one: (one.where.file, one.where.line)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True)
class Watermark:
    """Events that arrive more than `delay` after the newest one may be dropped."""

    column: str
    delay: str


@dataclass(frozen=True)
class BadRecords:
    """The handling of records that cannot be decoded: the option onBadRecord, and the dead letter topic for `deadletter`."""

    action: str = "fail"
    dead_letter: str | None = None


class SourceKind(Enum):
    TOPIC = "topic"
    FILES = "files"  # a folder whose new files form a stream
    TABLE = "table"  # files as they are at the start, or a table of Spark's catalog
    FORMAT = "format"  # any other format that Spark supports


@dataclass(frozen=True, kw_only=True)
class Source:
    name: str
    where: Place
    kind: SourceKind
    target: str  # comma-separated topics, a topic pattern, a path or a table name; "" for a format
    is_stream: bool
    is_pattern: bool = False
    format: str | None = None  # format of files, or Spark's; None for a topic or a catalog table
    key: str = "raw"
    value: str = "raw"
    schema: str | None = None  # schema as text: Spark's DDL, or what the value's format uses
    schema_file: str | None = None
    metadata: tuple[str, ...] | None = None  # columns of the record to read besides the value's; None: the defaults
    bad_records: BadRecords = BadRecords()
    watermark: Watermark | None = None
    options: Mapping[str, str] = field(default_factory=dict)  # options given for this source only


class StepKind(Enum):
    SQL = "sql"
    PYTHON = "python"
    DEDUPLICATE = "deduplicate"


@dataclass(frozen=True, kw_only=True)
class Step:
    name: str
    where: Place
    kind: StepKind
    inputs: tuple[str, ...]  # parameters of a Python function in order, or the tables that SQL reads
    sql: str = ""
    sql_where: Place | None = None  # place of the first line of `sql`
    python_file: Path | None = None
    python_name: str = ""
    function: Callable[..., Any] | None = None  # set if the pipeline is written in Python
    keys: tuple[str, ...] = ()  # key columns of deduplicate
    watermark: Watermark | None = None


class TriggerKind(Enum):
    INTERVAL = "interval"
    AVAILABLE_NOW = "available-now"


@dataclass(frozen=True)
class Trigger:
    kind: TriggerKind = TriggerKind.INTERVAL
    interval: str = "0 seconds"  # by default, each batch starts as soon as the last one ends

    def __str__(self) -> str:
        return self.interval if self.kind is TriggerKind.INTERVAL else self.kind.value


class SinkKind(Enum):
    TOPIC = "topic"
    FILES = "files"
    CONSOLE = "console"
    FORMAT = "format"


@dataclass(frozen=True, kw_only=True)
class Sink:
    name: str
    where: Place
    kind: SinkKind
    source: str  # name of the step or source that it writes
    target: str = ""  # a topic ("" if topic_expression is set) or a path
    format: str | None = None  # format of files, or Spark's
    mode: str = "append"
    key: str | None = None  # SQL expression, as are topic_expression, timestamp and the values of headers
    value: str = "json"  # json, raw or a SQL expression
    topic_expression: str | None = None
    timestamp: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    trigger: Trigger | None = None  # overrides the pipeline's trigger
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SparkSettings:
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    name: str
    where: Place
    origin: Path  # the file that defines it
    settings: Mapping[str, str]  # options for the sources and sinks of all topics
    spark: SparkSettings
    checkpoint: str  # path of the folder that has one folder per sink
    sources: Mapping[str, Source]
    steps: Mapping[str, Step]
    sinks: Mapping[str, Sink]
    trigger: Trigger

    def checkpoint_of(self, sink: Sink) -> str:
        return f"{self.checkpoint.rstrip('/')}/{sink.name}"

    def query_of(self, sink: Sink) -> str:
        """Return the name of the sink's query, in Spark and in all output."""
        return f"{self.name}.{sink.name}"

    def trigger_of(self, sink: Sink) -> Trigger:
        return sink.trigger or self.trigger

    def inputs_of(self, name: str) -> tuple[str, ...]:
        step = self.steps.get(name)
        return () if step is None else step.inputs

    def upstream(self, name: str) -> Iterator[str]:
        """Yield a source or step and everything upstream of it, nearest first and each once; unknown names are skipped."""
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            one = waiting.pop(0)
            if one in seen or (one not in self.sources and one not in self.steps):
                continue
            seen.add(one)
            yield one
            waiting += self.inputs_of(one)

    def is_stream(self, name: str) -> bool:
        """Return whether a source or step is a stream, as far as the definition shows: functions may return either."""
        return any(self.sources[one].is_stream for one in self.upstream(name) if one in self.sources)

    def is_bounded(self, sink: Sink) -> bool:
        """Return whether the sink's query ends by itself."""
        return self.trigger_of(sink).kind is TriggerKind.AVAILABLE_NOW or not self.is_stream(sink.source)

    def put_aside_elsewhere(self, sink: Sink) -> frozenset[str]:
        """Return the sources whose dead letters the query of another sink sends: the first sink that reads them."""
        read: set[str] = set()
        for one in self.sinks.values():
            if one.name == sink.name:
                break
            read.update(self.upstream(one.source))
        return frozenset(
            name
            for name in self.upstream(sink.source)
            if name in read and name in self.sources and self.sources[name].bad_records.dead_letter is not None
        )

    @property
    def topics_written(self) -> tuple[str, ...]:
        return tuple(one.target for one in self.sinks.values() if one.kind is SinkKind.TOPIC and one.target)
