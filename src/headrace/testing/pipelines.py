"""Runs a pipeline in a test on a fresh node, with the given records, and returns the rows of each sink.

rows = run_pipeline("shop.yaml", {"orders": [{"id": 1, "amount": 9.5}]}, spark=spark)["large_orders"]
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from headrace.base.errors import HeadraceError
from headrace.base.ids import TopicPartition
from headrace.client import Admin, Consumer, NewTopic, Producer
from headrace.pipelines.definitions import DefinitionError, Pipeline, Sink, SinkKind, SourceKind, load
from headrace.pipelines.definitions.definition import BOOTSTRAP_SERVERS
from headrace.pipelines.definitions.fields import Problems, suggestion
from headrace.pipelines.definitions.frames import SinkFrames, settings_of
from headrace.pipelines.definitions.parts import overridden
from headrace.pipelines.definitions.python.files import Draft
from headrace.pipelines.definitions.spark_errors import spark_message
from headrace.pipelines.definitions.writing import start_query, write_once
from headrace.pipelines.group_commits import commit_groups
from headrace.pipelines.sink.options import PROGRESS_TOPIC
from headrace.testing.cluster import EmbeddedNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

END_S_MAX = 120
POLL_S = 0.2
NODE_SETTINGS = {"log.retention.ms": "-1"}  # tests write records with timestamps of any year
_OF_OTHER_BROKERS = ("kafka.security.", "kafka.sasl.", "kafka.ssl.", BOOTSTRAP_SERVERS)


class PipelineFailed(HeadraceError):
    """A query failed, or a query or read did not finish in time; the text gives the reason."""


@dataclass(frozen=True)
class Record:
    """A record to write or one that was read. On writing, mappings and lists become JSON, strings UTF-8."""

    value: Any = None
    key: Any = None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    timestamp_ms: int | None = None
    topic: str = ""
    partition: int | None = None


class Rows(dict[str, list[Any]]):
    """The rows of each sink, by its name.

    JSON values are decoded, rows of files and collected rows are dictionaries, other values are text.
    `topics` maps each topic that was written, dead letter topics included, to its records with keys and headers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[str, list[Record]] = {}


def run_pipeline(
    pipeline: Pipeline | Draft | Path | str,
    records: Mapping[str, Sequence[Any]],
    *,
    spark: SparkSession,
    name: str | None = None,
    partitions: int = 1,
    overrides: Mapping[str, str] | None = None,
    timeout_s: int = END_S_MAX,
) -> Rows:
    """Run a pipeline until it has processed all `records`, and return what each sink wrote.

    The keys of `records` are topics, or names of sources that do not read a topic. `name` is required if the file has several
    pipelines. Checkpoints and files go to a temporary directory; the pipeline's own directories are not touched. A window is written
    only when the watermark has passed it: end `records` with a record whose timestamp is late enough.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, EmbeddedNode(NODE_SETTINGS) as node:
        instead = {**(overrides or {}), BOOTSTRAP_SERVERS: node.bootstrap, "trigger": "available-now"}
        found = _here(_chosen(pipeline, name, instead), node, Path(folder))
        given = {key: list(some) for key, some in records.items()}
        found = _with_rows(found, given, Path(folder))
        topics = _fill(found, given, node.bootstrap, partitions)
        collected = _run(found, spark, timeout_s)
        return _collect(found, spark, collected, topics, node.bootstrap)


def _chosen(pipeline: Pipeline | Draft | Path | str, name: str | None, overrides: Mapping[str, str]) -> Pipeline:
    if isinstance(pipeline, Draft):
        return pipeline.definition(overrides)
    if isinstance(pipeline, Pipeline):
        problems = Problems({})
        changed = overridden(pipeline, overrides, problems)
        if problems.found:
            raise DefinitionError(problems.found)
        return changed
    there = {one.name: one for one in load(pipeline, overrides)}
    if name is None and len(there) == 1:
        return next(iter(there.values()))
    if name not in there:
        raise ValueError(f"{pipeline} has the pipelines {', '.join(there)}: say which with name=")
    return there[name]


def _here(pipeline: Pipeline, node: EmbeddedNode, folder: Path) -> Pipeline:
    """Return the pipeline with this node's address, without security settings, and with its files in `folder`."""
    settings = {**_without_others(pipeline.settings), BOOTSTRAP_SERVERS: node.bootstrap}
    sources = {name: replace(one, options=_without_others(one.options)) for name, one in pipeline.sources.items()}
    sinks = {name: replace(one, options=_without_others(one.options)) for name, one in pipeline.sinks.items()}
    for name, sink in sinks.items():
        if sink.kind is SinkKind.FILES:
            sinks[name] = replace(sink, target=f"{folder}/out/{name}")
    return replace(pipeline, settings=settings, checkpoint=f"{folder}/checkpoints", sources=sources, sinks=sinks)


def _without_others(options: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in options.items() if not name.lower().startswith(_OF_OTHER_BROKERS)}


def _with_rows(pipeline: Pipeline, given: dict[str, list[Any]], folder: Path) -> Pipeline:
    """Let sources other than topics read the rows in `given` instead; remove those rows from `given`."""
    sources = dict(pipeline.sources)
    for name, source in pipeline.sources.items():
        if source.kind is SourceKind.TOPIC or name not in given:
            continue
        path = folder / "in" / name
        path.mkdir(parents=True)
        (path / "rows.json").write_bytes(b"".join(_bytes(row) + b"\n" for row in given.pop(name)))
        kind = SourceKind.FILES if source.is_stream else SourceKind.TABLE
        sources[name] = replace(source, kind=kind, format="json", target=str(path), options={})
    return replace(pipeline, sources=sources)


def _fill(pipeline: Pipeline, given: Mapping[str, Sequence[Any]], bootstrap: str, partitions: int) -> set[str]:
    """Create all topics that the pipeline names, write the records, and return the topics that it reads."""
    read: set[str] = set()
    for source in pipeline.sources.values():
        if source.kind is SourceKind.TOPIC and not source.is_pattern:
            read.update(source.target.split(","))
    if not any(source.is_pattern for source in pipeline.sources.values()):
        for topic in given:
            if topic not in read:
                known = (*read, *pipeline.sources)
                raise ValueError(f"nothing in {pipeline.name} reads {topic}{suggestion(topic, known)}")
    read.update(given)
    letters = {one.bad_records.dead_letter for one in pipeline.sources.values() if one.bad_records.dead_letter}
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        made = sorted({*read, *pipeline.topics_written, *letters})
        admin.create_topics([NewTopic(topic, partitions, 1) for topic in made])
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        deliveries = []
        for topic, some in given.items():
            for one in some:
                record = one if isinstance(one, Record) else Record(one)
                deliveries.append(
                    producer.send(
                        topic,
                        _encoded(record.value),
                        _encoded(record.key),
                        headers=list(record.headers.items()),
                        timestamp_ms=record.timestamp_ms,
                        partition=record.partition,
                    )
                )
        producer.flush()
        for delivery in deliveries:
            delivery.result()
    return read


def _encoded(value: Any) -> bytes | None:
    return None if value is None else _bytes(value)


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value, default=_json).encode()


def _json(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime | date | time) else str(value)


def _run(pipeline: Pipeline, spark: SparkSession, timeout_s: int) -> dict[str, list[Any]]:
    """Run the sinks in the order of the definition, since a later sink may read what an earlier one wrote.

    Return the rows of sinks that are neither topics nor files; they are collected instead of written.
    """
    collected: dict[str, list[Any]] = {}
    try:
        with settings_of(pipeline, spark):
            frames = SinkFrames(pipeline, spark)
            for name, sink in pipeline.sinks.items():
                frame = frames[sink]
                query: StreamingQuery | None = None
                if sink.kind not in (SinkKind.TOPIC, SinkKind.FILES):
                    query = _start_collecting(frame, pipeline, sink, collected.setdefault(name, []))
                elif frame.isStreaming:
                    query = start_query(frame, pipeline, sink)
                else:
                    write_once(frame, pipeline, sink)
                if query is not None:
                    _wait(query, pipeline.query_of(sink), timeout_s)
    finally:
        _let_groups_commit(spark)
    return collected


def _wait(query: StreamingQuery, name: str, timeout_s: int) -> None:
    try:
        has_ended = query.awaitTermination(timeout_s)
    except Exception as error:
        raise PipelineFailed(f"{name}: {spark_message(error)}") from error
    finally:
        query.stop()
    if not has_ended:
        raise PipelineFailed(f"{name} did not end within {timeout_s} s")


def _start_collecting(frame: DataFrame, pipeline: Pipeline, sink: Sink, into: list[Any]) -> StreamingQuery | None:
    def collect(batch: DataFrame, number: int) -> None:
        into.extend(row.asDict(recursive=True) for row in batch.collect())

    if not frame.isStreaming:
        collect(frame, 0)
        return None
    writer = frame.writeStream.outputMode(sink.mode).foreachBatch(collect)
    return writer.option("checkpointLocation", pipeline.checkpoint_of(sink)).trigger(availableNow=True).start()


def _let_groups_commit(spark: SparkSession) -> None:
    """Flush the group commits while the node still runs; a later commit would wait for it until it times out."""
    context: Any = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()
    commit_groups(spark).flush()


def _collect(
    pipeline: Pipeline, spark: SparkSession, collected: Mapping[str, list[Any]], read: set[str], bootstrap: str
) -> Rows:
    rows = Rows()
    fixed = set(pipeline.topics_written)
    letters = {source.bad_records.dead_letter for source in pipeline.sources.values()}
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        topics = [name for name in admin.list_topics() if name != PROGRESS_TOPIC]
    for record in _records(bootstrap, [name for name in topics if name not in read or name in fixed], END_S_MAX):
        rows.topics.setdefault(record.topic, []).append(record)
    for name, sink in pipeline.sinks.items():
        if name in collected:
            rows[name] = collected[name]
        elif sink.kind is SinkKind.FILES:
            rows[name] = _file_rows(spark, sink)
        else:
            targets = [sink.target] if sink.target else [one for one in rows.topics if one not in fixed | letters]
            written = [record for topic in targets for record in rows.topics.get(topic, ())]
            rows[name] = [_decoded(record.value, sink) for record in written]
    return rows


def _records(bootstrap: str, topics: Sequence[str], timeout_s: int) -> list[Record]:
    """Return all committed records of `topics`, sorted by topic and partition."""
    found: list[tuple[TopicPartition, Record]] = []
    options = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    with Admin({"bootstrap.servers": bootstrap}) as admin, Consumer(options) as consumer:
        infos = admin.describe_topics(topics) if topics else {}
        consumer.assign(
            [TopicPartition(topic, index) for topic, info in infos.items() for index in range(len(info.partitions))]
        )
        ends = consumer.end_offsets(consumer.assignment())
        deadline = monotonic() + timeout_s
        while any(consumer.position(one) < end for one, end in ends.items()):
            if monotonic() > deadline:
                raise PipelineFailed(f"the topics {', '.join(topics)} could not be read within {timeout_s} s")
            for one in consumer.poll(POLL_S):
                headers = {name: value or b"" for name, value in one.headers}
                made = Record(one.value, one.key, headers, one.timestamp, one.topic, one.partition)
                found.append((TopicPartition(one.topic, one.partition), made))
    return [record for _, record in sorted(found, key=lambda pair: pair[0])]


def _decoded(value: bytes | None, sink: Sink) -> Any:
    if value is None:
        return None
    return json.loads(value) if sink.value == "json" else value.decode(errors="replace")


def _file_rows(spark: SparkSession, sink: Sink) -> list[Any]:
    if not Path(sink.target).exists():
        return []
    options = {name: text for name, text in sink.options.items() if name.lower() == "header"}
    frame = spark.read.format(str(sink.format)).options(**options).load(sink.target)
    return [row.asDict(recursive=True) for row in frame.collect()]
