"""What a pipeline is, wherever it was written: sources, steps and sinks by name, each with the place where it stands.

Paths are complete already, and texts are as they were given: nothing here looks at files, brokers or Spark.
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
    line: int = 0  # from 1; 0: the file as a whole

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else str(self.file)


@dataclass(frozen=True)
class Problem:
    where: Place
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class DefinitionError(HeadraceError):
    """Pipelines that cannot be run as they are written: all that is wrong, a line for each, `file:line: what`."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems
        self.problems = tuple(sorted(dict.fromkeys(problems), key=lambda one: (one.where.file, one.where.line)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True)
class Watermark:
    """Events that come later than `delay` after the newest one may be left out."""

    column: str
    delay: str


@dataclass(frozen=True)
class BadRecords:
    """What becomes of records that cannot be decoded: the option onBadRecord, and the topic where they go with `deadletter`."""

    action: str = "fail"
    dead_letter: str | None = None


class SourceKind(Enum):
    TOPIC = "topic"
    FILES = "files"  # a folder whose new files are a stream
    TABLE = "table"  # files as they are at the start, or a table of Spark's catalog
    FORMAT = "format"  # any other source that Spark knows


@dataclass(frozen=True, kw_only=True)
class Source:
    name: str
    where: Place
    kind: SourceKind
    target: str  # topics with commas between, a pattern of topics, a path or the name of a table; "" for a format
    is_stream: bool
    is_pattern: bool = False
    format: str | None = None  # of files, or of what Spark knows; None for a topic and for a table of the catalog
    key: str = "raw"
    value: str = "raw"
    schema: str | None = None  # as text: Spark's DDL, or whatever the format of the value takes
    schema_file: str | None = None
    metadata: tuple[str, ...] | None = (
        None  # columns of the record that are wanted besides its value's; None: the usual ones
    )
    bad_records: BadRecords = BadRecords()
    watermark: Watermark | None = None
    options: Mapping[str, str] = field(default_factory=dict)  # as given for this source alone


class StepKind(Enum):
    SQL = "sql"
    PYTHON = "python"
    DEDUPLICATE = "deduplicate"


@dataclass(frozen=True, kw_only=True)
class Step:
    name: str
    where: Place
    kind: StepKind
    inputs: tuple[str, ...]  # of Python in the order of its parameters; of SQL the names it reads from
    sql: str = ""
    sql_where: Place | None = None  # of the first line of `sql`
    python_file: Path | None = None
    python_name: str = ""
    function: Callable[..., Any] | None = None  # if the pipeline is written in Python
    keys: tuple[str, ...] = ()  # of deduplicate
    watermark: Watermark | None = None


class TriggerKind(Enum):
    INTERVAL = "interval"
    AVAILABLE_NOW = "available-now"


@dataclass(frozen=True)
class Trigger:
    kind: TriggerKind = TriggerKind.INTERVAL
    interval: str = "0 seconds"  # none: the next batch begins when the last one is done

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
    source: str  # what it writes: the name of a step or of a source
    target: str = ""  # a topic ("" if topic_expression has it) or a path
    format: str | None = None  # of files, or of what Spark knows
    mode: str = "append"
    key: str | None = None  # an expression of SQL, as the others here
    value: str = "json"  # json, raw or an expression
    topic_expression: str | None = None
    timestamp: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    trigger: Trigger | None = None  # instead of the pipeline's
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SparkSettings:
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    name: str
    where: Place
    origin: Path  # the file
    settings: Mapping[str, str]  # of all topics: options of sources and sinks
    spark: SparkSettings
    checkpoint: str  # a folder of folders, one for each sink
    sources: Mapping[str, Source]
    steps: Mapping[str, Step]
    sinks: Mapping[str, Sink]
    trigger: Trigger

    def checkpoint_of(self, sink: Sink) -> str:
        return f"{self.checkpoint.rstrip('/')}/{sink.name}"

    def query_of(self, sink: Sink) -> str:
        """The name of its query in Spark, and wherever people see it."""
        return f"{self.name}.{sink.name}"

    def trigger_of(self, sink: Sink) -> Trigger:
        return sink.trigger or self.trigger

    def inputs_of(self, name: str) -> tuple[str, ...]:
        step = self.steps.get(name)
        return () if step is None else step.inputs

    def upstream(self, name: str) -> Iterator[str]:
        """A source or step and all that it is made of, each once, nearest first; names that are not there are passed over."""
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
        """As far as it can be told from here: a function may do as it likes."""
        return any(self.sources[one].is_stream for one in self.upstream(name) if one in self.sources)

    def is_bounded(self, sink: Sink) -> bool:
        """Whether its query ends by itself."""
        return self.trigger_of(sink).kind is TriggerKind.AVAILABLE_NOW or not self.is_stream(sink.source)

    def put_aside_elsewhere(self, sink: Sink) -> frozenset[str]:
        """Sources whose bad records go to a topic, and are sent there by the query of another sink: the first that reads them."""
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
