"""df.write and df.writeStream to format("headrace") in a real Spark: every row exactly once, whatever fails."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.pipelines.topic_writer import TopicWriter

from headrace.testing.cluster import EmbeddedNode

pytest.importorskip("pyspark", reason="needs the extra spark")

from tests.pipelines.sink_runs import visible

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark's own code emits warnings

END_S_MAX = 90


@pytest.fixture
def topics(headrace_session_node: EmbeddedNode) -> TopicWriter:
    return TopicWriter(headrace_session_node.bootstrap)


@pytest.fixture
def topic(topics: TopicWriter, request: pytest.FixtureRequest) -> str:
    return topics.create(re.sub(r"[^A-Za-z0-9_-]", "-", request.node.name), 2)


@pytest.fixture
def servers(headrace_session_node: EmbeddedNode) -> dict[str, str]:
    return {"kafka.bootstrap.servers": headrace_session_node.bootstrap}


def values(servers: Mapping[str, str], topic: str) -> Counter[Any]:
    found, is_open = visible(servers["kafka.bootstrap.servers"], topic)
    assert not is_open, "something holds back the readers"
    return found


def numbers(count: int) -> Counter[Any]:
    return Counter(str(number) for number in range(count))


def stream(
    spark: SparkSession,
    servers: Mapping[str, str],
    topic: str,
    source: str,
    checkpoint: Path,
    change: Callable[..., Any] = lambda frame: frame,
    into: str = "headrace",
    **options: Any,
) -> StreamingQuery:
    frame = (
        spark.readStream.format("headrace")
        .options(**servers, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="8")
        .load()
    )
    frame = change(frame.selectExpr("cast(value as string) value", "partition", "offset"))
    return (
        frame.selectExpr("value", "value key")
        .writeStream.format(into)
        .options(**servers, topic=topic, checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )


@pytest.fixture
def source(topics: TopicWriter, topic: str) -> str:
    """Create a topic with 20 numbers in two partitions and return its name."""
    name = topics.create(f"{topic}-source", 2)
    for partition in range(2):
        topics.put(name, partition, [(None, b"%d" % number) for number in range(partition, 20, 2)])
    return name


def test_a_batch_write_writes_all_columns(
    spark: SparkSession, servers: dict[str, str], topics: TopicWriter, topic: str
) -> None:
    other = topics.create(f"{topic}-other")
    frame = spark.sql(
        f"""select * from values
            ('{topic}', 1, binary('k'), binary('a'), timestamp_millis(1500), array(named_struct('key', 'h', 'value', binary('x')))),
            ('{topic}', 0, null, binary('b'), null, null),
            ('{other}', null, null, null, null, null)
            as rows(topic, partition, key, value, timestamp, headers)"""
    )
    frame.write.format("headrace").options(**servers).mode("append").save()
    read = spark.read.format("headrace").options(**servers, subscribe=f"{topic},{other}", includeHeaders="true").load()
    rows = {(row.topic, row.partition): row for row in read.collect()}
    first = rows[topic, 1]
    assert (first.key, first.value, first.headers) == (b"k", b"a", [("h", b"x")])
    assert first.timestamp.timestamp() == 1.5
    assert (rows[topic, 0].key, rows[topic, 0].value) == (None, b"b")
    assert rows[other, 0].value is None
    assert len(rows) == 3


def test_a_batch_write_with_a_write_id_is_written_once(
    spark: SparkSession, servers: dict[str, str], topic: str
) -> None:
    frame = spark.range(0, 100, numPartitions=3).selectExpr("cast(id as string) value")
    for version in ("1", "1", "2", "2"):
        options = {"topic": topic, "writeId": topic, "writeVersion": version}
        frame.write.format("headrace").options(**servers, **options).mode("append").save()
    assert values(servers, topic) == numbers(100) + numbers(100)


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("cast(id as string) key", {}, "a column value is needed"),
        ("cast(id as string) value", {"topc": "x"}, "topc is no option of a write to format headrace"),
        ("cast(null as string) topic, 'x' value", {"topic": None}, "row 1 of 1 in a batch of Arrow rows has no topic"),
    ],
)
def test_invalid_writes_raise_and_write_nothing(
    spark: SparkSession, servers: dict[str, str], topic: str, columns: str, options: dict[str, str | None], words: str
) -> None:
    frame = spark.range(1).selectExpr(*columns.split(", "))
    given = {name: value for name, value in {**servers, "topic": topic, **options}.items() if value is not None}
    with pytest.raises(Exception, match=r"(?s).*") as refused:
        frame.write.format("headrace").options(**given).mode("append").save()
    assert words in str(refused.value)
    assert not values(servers, topic)


@pytest.mark.parametrize("writers", [None, "1"])
def test_a_stream_writes_rows_once_and_resumes_at_its_checkpoint(
    spark: SparkSession,
    servers: dict[str, str],
    topics: TopicWriter,
    topic: str,
    source: str,
    tmp_path: Path,
    writers: str | None,
) -> None:
    """Several tasks write to each output partition unless the stream is coalesced."""
    options = {} if writers is None else {"writers": writers}
    change = (lambda frame: frame) if writers is None else (lambda frame: frame.coalesce(1))
    stream(spark, servers, topic, source, tmp_path, change, **options).awaitTermination(END_S_MAX)
    assert values(servers, topic) == numbers(20)
    topics.put(source, 0, [(None, b"%d" % number) for number in range(20, 25)])
    stream(spark, servers, topic, source, tmp_path, change, **options).awaitTermination(END_S_MAX)
    assert values(servers, topic) == numbers(25)


def test_a_replay_of_the_last_batch_is_not_written_again(
    spark: SparkSession, servers: dict[str, str], topic: str, source: str, tmp_path: Path
) -> None:
    """Simulate a crash between the sink's commit and Spark's."""
    stream(spark, servers, topic, source, tmp_path).awaitTermination(END_S_MAX)
    commits = sorted((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    stream(spark, servers, topic, source, tmp_path).awaitTermination(END_S_MAX)
    assert values(servers, topic) == numbers(20)


def failing_source(file: Path) -> type[Any]:
    """Return format("failing"): like headrace, but a commit fails once after the step that the file names."""
    from pyspark.sql.datasource import DataSource

    flag = str(file)

    class Failing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "failing"

        def streamWriter(self, schema: Any, overwrite: Any) -> Any:
            from headrace.base.errors import HeadraceError
            from headrace.pipelines.sink import executor as sink_driver
            from headrace.pipelines.sink import writers as sink

            original = getattr(
                sink_driver.CommitExecutor.do, "original", sink_driver.CommitExecutor.do
            )  # patched already if this process has committed before

            async def do(commit_executor: Any, command: Any) -> Any:
                is_now = os.path.exists(flag) and Path(flag).read_text() == type(command).__name__
                response = await original(commit_executor, command)
                if is_now:
                    os.unlink(flag)
                    raise HeadraceError(f"failed on purpose after {type(command).__name__}")
                return response

            do.original = original  # type: ignore[attr-defined]
            sink_driver.CommitExecutor.do = do  # type: ignore[assignment]
            return sink.make_stream_writer(schema, self.options, overwrite)

    return Failing


@pytest.mark.parametrize("step", ["Record", "Settle", "MarkFinished"])
def test_a_failed_commit_is_followed_by_an_abort_and_a_replay(
    spark: SparkSession, servers: dict[str, str], topic: str, source: str, tmp_path: Path, step: str
) -> None:
    flag = tmp_path / "flag"
    flag.write_text(step)
    spark.dataSource.register(failing_source(flag))
    with pytest.raises(Exception, match=f"failed on purpose after {step}"):
        stream(spark, servers, topic, source, tmp_path / "c", into="failing").awaitTermination(END_S_MAX)
    assert not flag.exists()
    is_decided = step != "Record"
    found = values(servers, topic)
    assert bool(found) == is_decided, "what is decided is finished, what is not is aborted, by the abort already"
    stream(spark, servers, topic, source, tmp_path / "c").awaitTermination(END_S_MAX)
    assert values(servers, topic) == numbers(20)


def test_a_failed_task_is_retried_without_duplicates(
    spark: SparkSession, servers: dict[str, str], topic: str, source: str, tmp_path: Path
) -> None:
    if "," not in spark.sparkContext.master:
        pytest.skip(f"{spark.sparkContext.master} does not run a failed task again")

    def flaky(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        for batch in batches:
            yield batch
            if context.partitionId() == 1 and context.attemptNumber() == 0:
                raise RuntimeError("on purpose")

    def change(frame: DataFrame) -> DataFrame:
        return frame.mapInArrow(flaky, frame.schema)

    stream(spark, servers, topic, source, tmp_path, change).awaitTermination(END_S_MAX)
    assert values(servers, topic) == numbers(20)
