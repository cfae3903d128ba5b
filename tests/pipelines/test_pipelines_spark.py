"""format("headrace") in a real Spark: rows, restarts, groups and single-line errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.pipelines.topic_writer import TopicWriter

from headrace.testing.cluster import EmbeddedNode

pytest.importorskip("pyspark", reason="needs the extra spark")

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark's own code emits warnings

SEEN_S_MAX = 60.0


@pytest.fixture
def topics(headrace_session_node: EmbeddedNode) -> TopicWriter:
    return TopicWriter(headrace_session_node.bootstrap)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name.translate(str.maketrans("[]", "--"))


@pytest.fixture
def read(spark: SparkSession, headrace_session_node: EmbeddedNode) -> Callable[..., Any]:
    def load(reader: Any = None, schema: str | None = None, **options: Any) -> DataFrame:
        reader = (reader or spark.read).format("headrace")
        reader = reader.schema(schema) if schema else reader
        options = {"kafka.bootstrap.servers": headrace_session_node.bootstrap, **options}
        return reader.options(**options).load()

    return load


def until(found: Callable[..., Any], expected: dict[str, int] | int) -> dict[str, int] | int:
    deadline = time.monotonic() + SEEN_S_MAX
    while (now := found()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


def test_a_batch_read_has_the_rows_and_columns_of_sparks_kafka_source(
    spark: SparkSession, read: Callable[..., Any], topics: TopicWriter, name: str
) -> None:
    topics.create(name, 2)
    topics.put(name, 0, [(b"a", b"x", 1500, (("h", b"1"), ("h", None))), (None, None, 2000)])
    topics.fill(name, 1, 3)
    frame = read(subscribe=name, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, second, *rest = (tuple(row) for row in frame.orderBy("partition", "offset").collect())
    at = datetime.fromtimestamp(1.5, UTC).astimezone().replace(tzinfo=None)
    assert first == (b"a", b"x", name, 0, 0, at, 0, [("h", b"1"), ("h", None)])
    assert (second[0], second[1], second[7]) == (None, None, None)
    assert [row[:5] for row in rest] == [(b"k%d" % n, b"v%d" % n, name, 1, n) for n in range(3)]

    # Only the columns requested by option or by schema are read.
    assert read(subscribe=name, columns="offset,topic").columns == ["offset", "topic"]
    assert read(subscribe=name, schema="value binary").where("value is not null").count() == 4

    # Filters on partition, offset and time reduce what is read, whether Spark pushes them down or not.
    condition = "partition = 1 and offset >= 1 and timestamp >= timestamp_millis(1002)"
    narrow = read(subscribe=name).where(condition)
    assert narrow.rdd.getNumPartitions() == 1
    assert [row.offset for row in narrow.collect()] == [2]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert [row.offset for row in read(subscribe=name).where(condition).collect()] == [2]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"subscribe": "nowhere"}, "there is no topic nowhere"),
        ({"startingOffsets": '{"NAME": {"0": 1}}'}, "offset 1 was to be read, but the log now starts at 2"),
        ({"kafka.bootstrap.servers": "no.such.host.invalid:1"}, "cannot connect to no.such.host.invalid:1"),
    ],
    ids=["option", "topic", "loss", "address"],
)
def test_read_errors_are_reported_in_one_line(
    read: Callable[..., Any], topics: TopicWriter, name: str, options: dict[str, str], words: str
) -> None:
    topics.create(name)
    topics.fill(name, 0, 3)
    topics.delete_before(name, 0, 2)
    named = {key: value.replace("NAME", name) for key, value in options.items()}
    with pytest.raises(Exception, match=r"(?s).*") as refused:
        read(**{"subscribe": name, **named}).collect()
    text = str(refused.value)
    assert words in text
    assert "Traceback" not in text
    assert len(text.strip().splitlines()) <= 2, "the line, and Spark's SQLSTATE"


def test_a_stream_resumes_at_its_checkpoint_and_commits_group_offsets(
    spark: SparkSession, read: Callable[..., Any], topics: TopicWriter, name: str, tmp_path: Path
) -> None:
    topics.create(name, 2)
    topics.fill(name, 0, 5)
    topics.fill(name, 1, 2)

    def run(**options: Any) -> StreamingQuery:
        frame = read(spark.readStream, subscribe=name, startingOffsets="earliest", **options)
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        query.awaitTermination()
        return query

    def rows() -> list[tuple[int, int]]:
        found = spark.read.parquet(str(tmp_path / "rows"))
        return sorted((row.partition, row.offset) for row in found.select("partition", "offset").collect())

    query = run(maxOffsetsPerTrigger="3")
    assert len({one.batchId for one in query.recentProgress if one.numInputRows}) >= 2
    assert rows() == [(0, n) for n in range(5)] + [(1, n) for n in range(2)]
    group = f"spark-headrace-{query.id}"
    assert until(lambda: topics.committed(group), {f"{name}-0": 5, f"{name}-1": 2}) == {f"{name}-0": 5, f"{name}-1": 2}

    topics.grow(name, 3)
    topics.fill(name, 2, 2)
    topics.fill(name, 0, 1)
    run(maxBytesPerTrigger="1000000", **{"kafka.group.id": f"{name}-group"})
    assert rows() == [(0, n) for n in range(6)] + [(1, n) for n in range(2)] + [(2, n) for n in range(2)]
    expected = {f"{name}-0": 6, f"{name}-1": 2, f"{name}-2": 2}
    assert until(lambda: topics.committed(f"{name}-group"), expected) == expected


def test_a_running_stream_reads_new_records_and_reports_data_loss(
    spark: SparkSession, read: Callable[..., Any], topics: TopicWriter, name: str
) -> None:
    topics.create(name)
    frame = read(
        spark.readStream, subscribe=name, columns="offset", startingOffsets="earliest", minOffsetsPerTrigger="1"
    )
    query = frame.writeStream.format("memory").queryName(name).start()

    def seen() -> int:
        # Reading the progress is free, unlike querying the table, which would take cores from the stream.
        if not query.isActive:
            raise AssertionError(str(query.exception()))
        return sum(one.numInputRows for one in query.recentProgress)

    try:
        topics.fill(name, 0, 2)
        assert until(seen, 2) == 2
        topics.fill(name, 0, 1)
        assert until(seen, 3) == 3
        group = f"spark-headrace-{name}-{str(query.id)[:8]}"  # includes the query's name, so that a pipeline's groups can be recognised
        assert until(lambda: topics.committed(group), {f"{name}-0": 3}) == {f"{name}-0": 3}
        assert [row.offset for row in spark.table(name).orderBy("offset").collect()] == [0, 1, 2]
        topics.delete(name)
        topics.create(name)
        with pytest.raises(Exception, match=f"topic {name} was deleted and recreated"):
            query.awaitTermination(SEEN_S_MAX)
    finally:
        query.stop()
