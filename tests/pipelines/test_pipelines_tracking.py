"""How a stream advances and what a task reads, with a real node and without Spark."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.pipelines.topic_writer import TopicWriter

from headrace.base.errors import HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.pipelines.background import background
from headrace.pipelines.failures import DataLoss, SourceError
from headrace.pipelines.source.batch_plan import BatchPlan, plan_batch
from headrace.pipelines.source.brokers import Brokers
from headrace.pipelines.source.offsets import StreamOffset
from headrace.pipelines.source.options import Mode, SourceOptions, parse_options
from headrace.pipelines.source.planning import Range
from headrace.pipelines.source.pushed_filters import Pushed
from headrace.pipelines.source.reading import TaskRange, read_task
from headrace.pipelines.source.tracking import Tracker
from headrace.testing.cluster import EmbeddedNode

COLUMNS = ("offset", "value")


class Stream:
    """A query as Spark would run it, without reading the rows."""

    def __init__(
        self,
        node: EmbeddedNode,
        start: StreamOffset | None = None,
        now: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        self.options = parse_options({"kafka.bootstrap.servers": node.bootstrap, **options}, Mode.STREAM)
        self.tracker = background().do(self._tracker(now))
        self.at = background().do(self.tracker.initial()) if start is None else start

    async def _tracker(self, now: Callable[..., Any] | None) -> Tracker:
        brokers = await Brokers.open(self.options)
        return Tracker(self.options, brokers, now) if now else Tracker(self.options, brokers)

    def batch(self, *, limited: bool = True, wait_ms: int = 0) -> list[tuple[str, int, int]] | None:
        """Return the ranges of the next batch, or None if there is none."""
        end = background().do(self.tracker.next(self.at, limited=limited, wait_ms=wait_ms))
        if end is None:
            return None
        before, self.at = self.at, end
        self.before = before
        return [(str(one.partition), one.start, one.end) for one in background().do(self.tracker.ranges(before, end))]


@pytest.fixture
def topics(headrace_session_node: EmbeddedNode) -> TopicWriter:
    return TopicWriter(headrace_session_node.bootstrap)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name.translate(str.maketrans("[]", "--"))


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.pipelines.source.tracking.STALE_S_MAX", 0.15)
    monkeypatch.setattr("headrace.pipelines.source.brokers.STALE_S_MAX", 0.15)
    monkeypatch.setattr("headrace.pipelines.source.brokers.FIRST_CONTACT_S_MAX", 0.15)


def test_a_restarted_stream_resumes_at_its_checkpoint(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name, 2)
    topics.fill(name, 0, 5)
    stream = Stream(headrace_session_node, subscribe=name, startingOffsets="earliest")
    assert stream.batch() == [(f"{name}-0", 0, 5)]
    assert stream.batch() is None
    topics.fill(name, 1, 3)
    restarted = Stream(headrace_session_node, stream.at, subscribe=name)
    assert restarted.batch() == [(f"{name}-1", 0, 3)]
    assert restarted.tracker.latest.to_json() == restarted.at.to_json()
    assert list(restarted.at.ids) == [name]


def test_a_new_stream_starts_at_the_log_end(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name)
    topics.fill(name, 0, 5)
    stream = Stream(headrace_session_node, subscribe=name)
    assert stream.batch() is None
    topics.fill(name, 0, 2)
    assert stream.batch() == [(f"{name}-0", 5, 7)]


@pytest.mark.parametrize(
    ("options", "begin"),
    [
        ({"startingOffsets": '{"NAME": {"0": 3, "1": -2}}'}, [3, 0]),
        ({"startingOffsets": '{"NAME": {"0": -1, "1": 2}}'}, [10, 2]),
        ({"startingTimestamp": "1004"}, [4, 4]),
        ({"startingOffsetsByTimestamp": '{"NAME": {"0": 1002, "1": 0}}'}, [2, 0]),
        ({"startingTimestamp": "5000", "startingOffsetsByTimestampStrategy": "latest"}, [10, 10]),
    ],
)
def test_starting_options_determine_the_first_offsets(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str, options: dict[str, str], begin: list[int]
) -> None:
    topics.create(name, 2)
    for partition in (0, 1):
        topics.fill(name, partition, 10)
    named: dict[str, Any] = {key: value.replace("NAME", name) for key, value in options.items()}
    offsets = Stream(headrace_session_node, subscribe=name, **named).at.offsets
    assert [offset for _, offset in sorted(offsets.items())] == begin


def test_a_starting_timestamp_after_the_last_record_raises_source_error(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name)
    with pytest.raises(SourceError, match=f"startingTimestamp: {name}-0 has no record at or after 5000 ms"):
        Stream(headrace_session_node, subscribe=name, startingTimestamp="5000")


def test_starting_offsets_must_name_all_partitions(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name, 2)
    offsets = f'{{"{name}": {{"0": 1, "7": 1}}}}'
    with pytest.raises(SourceError, match=f"does not name {name}-1; there is no {name}-7"):
        Stream(headrace_session_node, subscribe=name, startingOffsets=offsets)


def test_a_missing_topic_or_partition_raises_source_error(headrace_session_node: EmbeddedNode, name: str) -> None:
    with pytest.raises(SourceError, match=f"there is no topic {name}"):
        Stream(headrace_session_node, subscribe=name)
    with pytest.raises(SourceError, match=f"there is no {name}-3"):
        Stream(headrace_session_node, assign=f'{{"{name}": [3]}}')


def test_a_pattern_picks_up_new_topics(headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str) -> None:
    stream = Stream(headrace_session_node, subscribePattern=f"{name}-.*")
    assert stream.at.to_json() == {} and stream.batch() is None
    topics.create(f"{name}-x")
    topics.fill(f"{name}-x", 0, 4)
    topics.delete_before(f"{name}-x", 0, 1)
    assert stream.batch() == [(f"{name}-x-0", 1, 4)], "no loss: it was never promised"


def test_only_assigned_partitions_are_read(headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str) -> None:
    topics.create(name, 3)
    for partition in range(3):
        topics.fill(name, partition, 1)
    stream = Stream(headrace_session_node, assign=f'{{"{name}": [0, 2]}}', startingOffsets="earliest")
    assert stream.batch() == [(f"{name}-0", 0, 1), (f"{name}-2", 0, 1)]


def test_added_partitions_are_read_from_their_beginning(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name)
    stream = Stream(headrace_session_node, subscribe=name)
    topics.grow(name, 2)
    topics.fill(name, 1, 3)
    assert stream.batch() == [(f"{name}-1", 0, 3)]


def test_max_offsets_per_trigger_is_shared_between_partitions(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name, 2)
    topics.fill(name, 0, 80)
    topics.fill(name, 1, 20)
    stream = Stream(headrace_session_node, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    assert stream.batch() == [(f"{name}-0", 0, 8), (f"{name}-1", 0, 2)]
    assert stream.tracker.latest.to_json()[name] == {"0": 80, "1": 20}, "what lag is counted by"
    assert stream.batch(limited=False) == [(f"{name}-0", 8, 80), (f"{name}-1", 2, 20)]


def test_max_bytes_per_trigger_limits_a_batch(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name)
    for _ in range(10):
        topics.put(name, 0, [(None, bytes(1000))])
    stream = Stream(headrace_session_node, subscribe=name, startingOffsets="earliest", maxBytesPerTrigger="3500")
    assert stream.batch() == [(f"{name}-0", 0, 3)]
    assert stream.batch() == [(f"{name}-0", 3, 6)]


def test_a_batch_waits_for_min_offsets_up_to_max_trigger_delay(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name)
    now = [100.0]
    stream = Stream(
        headrace_session_node, subscribe=name, minOffsetsPerTrigger="5", maxTriggerDelay="10s", now=lambda: now[0]
    )
    topics.fill(name, 0, 1)
    assert stream.batch() == [(f"{name}-0", 0, 1)], "the first does not wait"
    topics.fill(name, 0, 4)
    assert stream.batch() is None
    topics.fill(name, 0, 1)
    assert stream.batch() == [(f"{name}-0", 1, 6)]
    topics.fill(name, 0, 1)
    assert stream.batch() is None
    now[0] += 10
    assert stream.batch() == [(f"{name}-0", 6, 7)]


def test_available_now_ends_at_the_offsets_of_its_start(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name)
    topics.fill(name, 0, 6)
    stream = Stream(
        headrace_session_node,
        subscribe=name,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="4",
        minOffsetsPerTrigger="4",
    )
    background().do(stream.tracker.freeze())
    topics.grow(name, 2)
    topics.fill(name, 0, 5)
    topics.fill(name, 1, 5)
    assert stream.batch() == [(f"{name}-0", 0, 4)]
    assert stream.batch(wait_ms=1000) == [(f"{name}-0", 4, 6)], "the end is no reason to wait for more"
    assert stream.batch(wait_ms=1000) is None


def test_a_wait_ends_when_a_record_arrives(headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str) -> None:
    topics.create(name)
    stream = Stream(headrace_session_node, subscribe=name)
    assert stream.batch(wait_ms=30) is None
    soon = threading.Timer(0.1, topics.fill, (name, 0, 1))
    soon.start()
    assert stream.batch(wait_ms=20_000) == [(f"{name}-0", 0, 1)]
    soon.join()


def test_deleted_records_raise_data_loss(headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str) -> None:
    topics.create(name)
    topics.fill(name, 0, 10)
    stream = Stream(headrace_session_node, subscribe=name, startingOffsets="earliest")
    topics.delete_before(name, 0, 4)
    with pytest.raises(DataLoss, match=f"{name}-0: offset 0 was to be read, but the log now starts at 4"):
        stream.batch()


def test_deleted_records_are_counted_if_data_loss_is_allowed(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    topics.create(name)
    topics.fill(name, 0, 10)
    stream = Stream(headrace_session_node, subscribe=name, startingOffsets="earliest", failOnDataLoss="false")
    topics.delete_before(name, 0, 4)
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        assert stream.batch() == [(f"{name}-0", 4, 10)]
    assert "4 offsets are skipped" in caplog.text
    assert stream.at.to_json()["#lost"] == {name: {"0": 4}}
    topics.delete_before(name, 0, 8)
    again = Stream(headrace_session_node, stream.before, subscribe=name, failOnDataLoss="false")
    ranges = background().do(again.tracker.ranges(stream.before, stream.at))
    assert ranges == [Range(TopicPartition(name, 0), 4, 10)], "a batch that is run again has the same ranges"
    topics.fill(name, 0, 1)
    topics.delete_before(name, 0, 11)
    assert stream.batch() == []
    assert stream.at.to_json()["#lost"] == {name: {"0": 5}}


def test_a_deleted_topic_raises_data_loss_unless_allowed(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    other = topics.create(f"{name}-other")
    topics.create(name)
    topics.fill(name, 0, 3)
    stream = Stream(headrace_session_node, subscribe=f"{name},{other}", startingOffsets="earliest")
    assert stream.batch() == [(f"{name}-0", 0, 3)]
    topics.delete(name)
    with pytest.raises(DataLoss, match=f"topic {name} is gone; {name}-0 up to offset 3 had been read"):
        stream.batch()
    stream = Stream(headrace_session_node, stream.at, subscribe=f"{name},{other}", failOnDataLoss="false")
    assert stream.batch() == []
    assert stream.at.to_json().keys() == {other, "#ids"}


def test_a_recreated_topic_raises_data_loss_unless_allowed(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name)
    topics.fill(name, 0, 3)
    stream = Stream(headrace_session_node, subscribe=name, startingOffsets="earliest")
    assert stream.batch() == [(f"{name}-0", 0, 3)]
    topics.delete(name)
    topics.create(name)
    topics.fill(name, 0, 5)
    with pytest.raises(DataLoss, match=f"topic {name} was deleted and recreated"):
        stream.batch()
    stream = Stream(headrace_session_node, stream.at, subscribe=name, failOnDataLoss="false")
    assert stream.batch() == [(f"{name}-0", 0, 5)]
    assert stream.batch() is None


def test_a_log_end_below_the_read_offset_raises_data_loss_unless_allowed(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name)
    topics.fill(name, 0, 3)
    at = StreamOffset({TopicPartition(name, 0): 9})
    with pytest.raises(DataLoss, match=f"{name}-0: it was read up to offset 9, but ends at 3 now"):
        Stream(headrace_session_node, at, subscribe=name).batch()
    stream = Stream(headrace_session_node, at, subscribe=name, failOnDataLoss="false")
    assert stream.batch() == []
    topics.fill(name, 0, 2)
    assert stream.batch() == [(f"{name}-0", 3, 5)]


def test_an_unreachable_bootstrap_server_raises_source_error() -> None:
    options = parse_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    with pytest.raises(SourceError, match=r"kafka.bootstrap.servers: cannot connect to 127.0.0.1:1: "):
        background().do(_layout(options))
    options = parse_options({"kafka.bootstrap.servers": "no.such.host.invalid:1", "subscribe": "t"})
    with pytest.raises(SourceError, match=r"cannot connect to no.such.host.invalid:1"):
        background().do(_layout(options))


async def _layout(options: SourceOptions) -> Any:
    return await (await Brokers.open(options)).layout()


# --- batch reads and tasks


def plan(node: EmbeddedNode, pushed: Pushed = Pushed(), /, **options: Any) -> list[tuple[int, int, int]]:  # noqa: B008 -- immutable
    found = parse_options({"kafka.bootstrap.servers": node.bootstrap, **options}, Mode.BATCH)

    async def run() -> BatchPlan:
        return await plan_batch(await Brokers.open(found), found, pushed)

    return [(one.partition.partition, one.start, one.end) for one in background().do(run()).ranges]


def test_options_and_filters_determine_the_ranges_of_a_batch(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name, 3)
    for partition in (0, 1):
        topics.fill(name, partition, 10)
    assert plan(headrace_session_node, subscribe=name) == [(0, 0, 10), (1, 0, 10)]
    assert plan(headrace_session_node, subscribe=name, minPartitions="4") == [
        (0, 0, 5),
        (0, 5, 10),
        (1, 0, 5),
        (1, 5, 10),
    ]
    assert plan(headrace_session_node, subscribe=name, startingTimestamp="1003", endingTimestamp="1006",
                startingOffsetsByTimestampStrategy="latest") == [(0, 3, 6), (1, 3, 6)]  # fmt: skip
    assert plan(headrace_session_node, Pushed(partitions=frozenset({1}), low=2, high=7), subscribe=name) == [(1, 2, 7)]
    assert plan(headrace_session_node, Pushed(since_ms=1008), subscribe=name) == [(0, 8, 10), (1, 8, 10)]
    with pytest.raises(SourceError, match="would end before it begins: startingTimestamp is offset 6"):
        plan(headrace_session_node, assign=f'{{"{name}": [0]}}', startingTimestamp="1006", endingTimestamp="1003")


def test_batch_offsets_outside_the_log_raise_data_loss_unless_allowed(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name)
    topics.fill(name, 0, 10)
    topics.delete_before(name, 0, 4)
    both: dict[str, Any] = {
        "subscribe": name,
        "startingOffsets": f'{{"{name}": {{"0": 1}}}}',
        "endingOffsets": f'{{"{name}": {{"0": 50}}}}',
    }
    with pytest.raises(DataLoss) as lost:
        plan(headrace_session_node, **both)
    assert "offset 1 was to be read, but the log now starts at 4" in str(lost.value)
    assert f"endingOffsets of {name}-0 is 50, but it ends at 10" in str(lost.value)
    assert plan(headrace_session_node, failOnDataLoss="false", **both) == [(0, 4, 10)]


def rows(node: EmbeddedNode, task: TaskRange, **options: Any) -> list[int]:
    found = parse_options({"kafka.bootstrap.servers": node.bootstrap, "subscribe": task.topic, **options})
    return [row["offset"] for batch in read_task(task, found, COLUMNS, "us") for row in batch.to_pylist()]


def test_a_task_reads_its_range(headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str) -> None:
    topics.create(name)
    topics.fill(name, 0, 10)
    assert rows(headrace_session_node, TaskRange(name, 0, 3, 8)) == [3, 4, 5, 6, 7]
    assert rows(headrace_session_node, TaskRange(name, 0, 3, 8), **{"kafka.fetch.max.bytes": "1"}) == [3, 4, 5, 6, 7]


def test_a_task_with_deleted_records_raises_data_loss_unless_allowed(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    topics.create(name)
    topics.fill(name, 0, 10)
    topics.delete_before(name, 0, 6)
    with pytest.raises(DataLoss, match=f"{name}-0: offset 3 was to be read, but the log now starts at 6"):
        rows(headrace_session_node, TaskRange(name, 0, 3, 8))
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        assert rows(headrace_session_node, TaskRange(name, 0, 3, 8), failOnDataLoss="false") == [6, 7]
    assert "3 offsets are skipped" in caplog.text
    assert rows(headrace_session_node, TaskRange(name, 0, 3, 5), failOnDataLoss="false") == []


def test_a_task_of_a_recreated_topic_raises_data_loss_unless_allowed(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name)
    topics.fill(name, 0, 3)
    task = TaskRange(name, 0, 0, 3, "A" * 21 + "A")
    with pytest.raises(DataLoss, match=f"topic {name} was recreated"):
        rows(headrace_session_node, task)
    assert rows(headrace_session_node, task, failOnDataLoss="false") == []


def test_a_task_of_a_missing_topic_raises_kafka_error(headrace_session_node: EmbeddedNode, name: str) -> None:
    with pytest.raises(KafkaError):
        rows(headrace_session_node, TaskRange(name, 0, 0, 3), **{"kafkaConsumer.pollTimeoutMs": "200"})


def test_closing_a_reader_stops_its_fetches(
    headrace_session_node: EmbeddedNode, topics: TopicWriter, name: str
) -> None:
    topics.create(name)
    topics.fill(name, 0, 10)
    found = parse_options({"kafka.bootstrap.servers": headrace_session_node.bootstrap, "subscribe": name})
    reading = read_task(TaskRange(name, 0, 0, 10), found, COLUMNS, "us")
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert rows(headrace_session_node, TaskRange(name, 0, 0, 2)) == [0, 1]


def test_a_broker_restart_during_a_read_loses_no_rows(headrace_node: EmbeddedNode) -> None:
    topics = TopicWriter(headrace_node.bootstrap)
    topics.create("t")
    for first in range(0, 60, 10):
        topics.fill("t", 0, 10, first)
    found = parse_options(
        {"kafka.bootstrap.servers": headrace_node.bootstrap, "subscribe": "t", "kafka.fetch.max.bytes": "1"}
    )
    reading = read_task(TaskRange("t", 0, 0, 60), found, COLUMNS, "us")
    offsets = [row["offset"] for row in next(reading).to_pylist()]
    headrace_node.restart()
    for batch in reading:
        offsets += [row["offset"] for row in batch.to_pylist()]
    assert offsets == list(range(60))


def test_a_stream_survives_a_restart_of_its_broker(headrace_node: EmbeddedNode) -> None:
    topics = TopicWriter(headrace_node.bootstrap)
    topics.create("t")
    stream = Stream(headrace_node, subscribe="t")
    headrace_node.stop()
    back = threading.Timer(0.3, headrace_node.start)
    back.start()
    assert stream.batch() is None
    back.join()
    topics.fill("t", 0, 2)
    assert stream.batch() == [("t-0", 0, 2)]


def test_the_background_loop_is_shared_and_propagates_exceptions() -> None:
    class Stop(Exception):
        pass

    async def fail() -> None:
        raise Stop

    with pytest.raises(Stop):
        background().do(fail())
    assert background() is background()
    assert isinstance(background().loop, asyncio.AbstractEventLoop)
    assert issubclass(SourceError, HeadraceError)
