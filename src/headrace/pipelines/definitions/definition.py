"""The definition of a pipeline, whether written in YAML or Python: named sources, steps and sinks, each with its location in a file.

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
    """A line in a file; its text is `file:line`."""

    file: Path
    line: int = 0  # line number, from 1; 0: the file as a whole

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else str(self.file)


@dataclass(frozen=True)
class Problem:
    """An error in a definition; its text is `file:line: text`."""

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
    """A bound on late events: those more than `delay` older than the newest one may be dropped."""

    column: str  # column with the time of the event
    delay: str  # duration such as "10 seconds"


@dataclass(frozen=True)
class BadRecords:
    """The handling of records that cannot be decoded: the option onBadRecord, and the dead letter topic for `deadletter`."""

    action: str = "fail"  # fail, skip, null or deadletter
    dead_letter: str | None = None  # the topic; None unless the action is deadletter


class SourceKind(Enum):
    """What a source reads."""

    TOPIC = "topic"  # one or more topics, or a topic pattern
    FILES = "files"  # a folder whose new files form a stream
    TABLE = "table"  # files as they are at the start, or a table of Spark's catalog
    FORMAT = "format"  # any other format that Spark supports


@dataclass(frozen=True, kw_only=True)
class Source:
    """A named input: topics, files, a table or any other format that Spark reads."""

    name: str
    where: Place
    kind: SourceKind
    target: str  # comma-separated topics, a topic pattern, a path or a table name; "" for a format
    is_stream: bool  # False: read as a table
    is_pattern: bool = False  # whether `target` is a topic pattern
    format: str | None = None  # format of files, or Spark's; None for a topic or a catalog table
    key: str = "raw"  # format of keys: raw, string, json, avro or protobuf
    value: str = "raw"  # format of values, with the same choices
    schema: str | None = None  # schema as text: Spark's DDL, or what the value's format uses
    schema_file: str | None = None  # path of a file with the schema
    metadata: tuple[str, ...] | None = None  # columns of the record to read besides the value's; None: the defaults
    bad_records: BadRecords = BadRecords()
    watermark: Watermark | None = None
    options: Mapping[str, str] = field(default_factory=dict)  # options given for this source only


class StepKind(Enum):
    """How a step transforms its inputs."""

    SQL = "sql"
    PYTHON = "python"  # a function from DataFrames to a DataFrame
    DEDUPLICATE = "deduplicate"  # the first row of each key, within the watermark


@dataclass(frozen=True, kw_only=True)
class Step:
    """A named transformation of sources and other steps, by SQL, by a Python function or by `deduplicate`."""

    name: str
    where: Place
    kind: StepKind
    inputs: tuple[str, ...]  # parameters of a Python function in order, or the tables that SQL reads
    sql: str = ""
    sql_where: Place | None = None  # location of the first line of `sql`
    python_file: Path | None = None  # file of the function, if the pipeline is written in YAML
    python_name: str = ""  # name of the function
    function: Callable[..., Any] | None = None  # set if the pipeline is written in Python
    keys: tuple[str, ...] = ()  # key columns of deduplicate
    watermark: Watermark | None = None


class TriggerKind(Enum):
    """When the batches of a query start."""

    INTERVAL = "interval"  # every interval, until the query is stopped
    AVAILABLE_NOW = "available-now"  # process what exists at the start, then end


@dataclass(frozen=True)
class Trigger:
    """The trigger of a query: an interval between the starts of batches, or a run that ends."""

    kind: TriggerKind = TriggerKind.INTERVAL
    interval: str = "0 seconds"  # by default, each batch starts as soon as the last one ends

    def __str__(self) -> str:
        return self.interval if self.kind is TriggerKind.INTERVAL else self.kind.value


class SinkKind(Enum):
    """Where a sink writes."""

    TOPIC = "topic"
    FILES = "files"
    CONSOLE = "console"
    FORMAT = "format"  # any other format that Spark supports


@dataclass(frozen=True, kw_only=True)
class Sink:
    """A named output. Each sink is one query with its own checkpoint."""

    name: str
    where: Place
    kind: SinkKind
    source: str  # name of the step or source that it writes
    target: str = ""  # a topic ("" if topic_expression is set) or a path
    format: str | None = None  # format of files, or Spark's
    mode: str = "append"  # append, update, complete or overwrite
    key: str | None = None  # SQL expression, as are topic_expression, timestamp and the values of headers
    value: str = "json"  # json, raw or a SQL expression
    topic_expression: str | None = None
    timestamp: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()  # columns with a folder for each value
    trigger: Trigger | None = None  # overrides the pipeline's trigger
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SparkSettings:
    """The Spark master, and Spark options by name."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline with its defaults filled in and its paths resolved. Sources, steps and sinks are keyed by name."""

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
        """Return the path of the checkpoint folder of the sink's query."""
        return f"{self.checkpoint.rstrip('/')}/{sink.name}"

    def query_of(self, sink: Sink) -> str:
        """Return the name of the sink's query, in Spark and in all output."""
        return f"{self.name}.{sink.name}"

    def trigger_of(self, sink: Sink) -> Trigger:
        """Return the sink's trigger, or the pipeline's if it has none."""
        return sink.trigger or self.trigger

    def inputs_of(self, name: str) -> tuple[str, ...]:
        """Return the inputs of a step; none if the name is that of a source or unknown."""
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
        """Return the topics that sinks name; those of a `topic_expression` and dead letter topics are left out."""
        return tuple(one.target for one in self.sinks.values() if one.kind is SinkKind.TOPIC and one.target)
