"""Options of the source: they have the names of Spark's, and errors say which one is wrong."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from headrace.base.errors import ConfigError
from headrace.base.ids import TopicPartition
from headrace.pipelines.group_commits import group_of
from headrace.pipelines.source.bounds import BoundKind
from headrace.pipelines.source.options import COLUMNS, Mode, SourceOptions, Topics, parse_options

NEEDED = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a"}


def parsed(mode: Mode = Mode.STREAM, /, **options: Any) -> SourceOptions:
    return parse_options({**NEEDED, **options}, mode)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    stream, batch = parsed(), parsed(Mode.BATCH)
    assert stream.starting.kind is BoundKind.LATEST
    assert (batch.starting.kind, batch.ending.kind) == (BoundKind.EARLIEST, BoundKind.LATEST)
    assert stream.fail_on_data_loss and stream.columns == COLUMNS and stream.max_delay_s == 900
    assert stream.topics == Topics(names=("a",))
    assert (stream.min_partitions, stream.max_records, stream.max_offsets, stream.max_bytes) == (None,) * 4
    assert (stream.group_id, stream.group_id_prefix) == (None, "spark-headrace")


def test_the_group_id_contains_the_query_name() -> None:
    query_id = "3f2a9c1b-0000-4000-8000-000000000000"
    assert group_of(parsed(), query_id, None) == f"spark-headrace-{query_id}"
    assert group_of(parsed(), query_id, "shop.sessions") == "spark-headrace-shop.sessions-3f2a9c1b"
    assert group_of(parsed(groupIdPrefix="mine"), query_id, "x" * 500) == f"mine-{'x' * 100}-3f2a9c1b"
    assert group_of(parsed(**{"kafka.group.id": "given"}), query_id, "shop.sessions") == "given"


def test_option_names_are_case_insensitive() -> None:
    found = parse_options({"KAFKA.bootstrap.servers": "h:1", "SUBSCRIBEPATTERN": "a.*", "failondataloss": "False"})
    assert found.topics == Topics(pattern="a.*")
    assert not found.fail_on_data_loss


def test_parsed_options_can_be_pickled() -> None:
    found = parsed(startingOffsets='{"a": {"0": 5}}')
    assert pickle.loads(pickle.dumps(found)) == found


def test_topics_are_selected_by_name_or_by_partition() -> None:
    assert parsed(subscribe=" b, a,,b").topics == Topics(names=("a", "b"))
    found = parse_options({"kafka.bootstrap.servers": "h:1", "assign": '{"b": [2, 0, 2], "a": [1], "c": []}'})
    assert found.topics == Topics(assigned=(("a", (1,)), ("b", (0, 2))))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": " , "}, "subscribe names no topic"),
        ({"subscribe": "a", "assign": "{}"}, "no two of subscribe, subscribePattern, assign"),
        ({}, "one of subscribe, subscribePattern, assign must be set"),
        ({"subscribePattern": " "}, "subscribePattern is empty"),
        ({"subscribePattern": "a("}, "no pattern of RE2: missing"),
        ({"subscribePattern": "(?=a)b"}, "no pattern of RE2"),
        ({"assign": "a"}, "assign='a' is not of the form"),
        ({"assign": "{}"}, "is not of the form"),
        ({"assign": '{"a": [-1]}'}, "is not of the form"),
        ({"assign": '{"a": [true]}'}, "is not of the form"),
        ({"assign": '{"a": 1}'}, "is not of the form"),
    ],
)
def test_invalid_or_conflicting_topic_selections_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_options({"kafka.bootstrap.servers": "h:1", **options})
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("maxOffsetPerTrigger", "5", "did you mean maxOffsetsPerTrigger?"),
        ("startingOffset", "latest", "did you mean startingOffsets?"),
        ("bootstrap.servers", "h:1", "did you mean kafka.bootstrap.servers?"),
        ("xyz", "1", "xyz is no option of format headrace"),
        ("maxOffsetsPerTrigger", "0", "maxOffsetsPerTrigger='0' is not allowed"),
        ("minPartitions", "x", "minPartitions='x' is not allowed"),
        ("failOnDataLoss", "maybe", "true or false"),
        ("maxTriggerDelay", "soon", "maxTriggerDelay='soon' is no time"),
        ("columns", "value,what", "columns: 'what' is none; there are key, value"),
        ("columns", "value,VALUE", "twice"),
        ("startingOffsets", "first", "earliest, latest or JSON"),
        ("startingOffsets", '{"a": {"0": -3}}', "-3 of a-0"),
        ("startingOffsets", '{"a": {"x": 3}}', "must be earliest, latest or JSON"),
        ("startingOffsetsByTimestamp", '{"a": {"0": -1}}', "-1 of a-0"),
        ("startingOffsetsByTimestampStrategy", "guess", "one of error, latest"),
        ("startingTimestamp", "yesterday", "startingTimestamp='yesterday' is not allowed"),
        ("kafka.bootstrap.servers", " ", "kafka.bootstrap.servers must be set"),
        ("kafka.isolation.level", "all", "kafka.isolation.level='all' is not allowed"),
    ],
)
def test_the_error_for_an_invalid_option_names_it(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(**{name: value})
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "name", ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"]
)
def test_options_that_sparks_source_refuses_are_refused_with_a_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=f"kafka.{name} cannot be set: "):
        parsed(**{f"kafka.{name}": "x"})


def test_ending_options_are_refused_for_streams() -> None:
    for name, value in [("endingOffsets", "latest"), ("endingTimestamp", "1"), ("endingOffsetsByTimestamp", "{}")]:
        with pytest.raises(ConfigError, match=f"{name} is for batch reads"):
            parsed(**{name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"endingOffsets": "earliest"},
        {"startingOffsets": '{"a": {"0": -1}}'},
        {"endingOffsets": '{"a": {"0": -2}}'},
        {"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"0": 4}}'},
        {"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"1": 6}}'},
        {"startingOffsetsByTimestamp": '{"a": {"0": 5}}', "endingOffsetsByTimestamp": '{"a": {"0": 4}}'},
    ],
)
def test_inconsistent_bounds_of_a_batch_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parsed(Mode.BATCH, **options)


def test_starting_and_ending_options_become_bounds() -> None:
    both = parsed(Mode.BATCH, startingOffsets='{"a": {"0": -2, "1": 7}}', endingOffsets='{"a": {"0": 9, "1": -1}}')
    assert both.starting.values == {TopicPartition("a", 0): -2, TopicPartition("a", 1): 7}
    times = parsed(startingTimestamp="5", startingOffsetsByTimestamp='{"a": {"0": 6}}', startingOffsets="earliest")
    assert (times.starting.kind, times.starting.timestamp) == (BoundKind.TIMESTAMP, 5)
    assert not times.starting.latest_if_none and times.starting.option == "startingTimestamp"
    lenient = parsed(startingOffsetsByTimestamp='{"a": {"0": 6}}', startingOffsetsByTimestampStrategy="latest")
    assert lenient.starting.latest_if_none and lenient.starting.kind is BoundKind.TIMESTAMPS


def test_options_select_the_columns() -> None:
    assert parsed(includeHeaders="true").columns == (*COLUMNS, "headers")
    assert parsed(columns="value, TIMESTAMPTYPE,headers").columns == ("value", "timestampType", "headers")


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("2 min", 120), ("1h", 3600), ("250", 0.25)]
)
def test_max_trigger_delay_accepts_units_of_time(text: str, seconds: float) -> None:
    assert parsed(maxTriggerDelay=text).max_delay_s == seconds


def test_min_offsets_per_trigger_above_the_maximum_is_refused() -> None:
    with pytest.raises(ConfigError, match="minOffsetsPerTrigger=5 is more than maxOffsetsPerTrigger=4"):
        parsed(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4")


def test_kafka_options_are_passed_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        found = parsed(**{"kafka.isolation.level": "read_committed", "kafka.group.id": "g", "kafka.fetch.maxx": "1"})
    assert found.client["isolation.level"] == "read_committed" and found.group_id == "g"
    assert found.given == {"bootstrap.servers", "isolation.level", "group.id", "fetch.maxx"}
    assert "kafka.fetch.maxx is no known option" in caplog.text


def test_options_without_effect_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        parsed(Mode.BATCH, maxOffsetsPerTrigger="5", **{"fetchOffset.numRetries": "3"})
    assert "maxOffsetsPerTrigger has no effect on a batch read" in caplog.text
    assert "fetchOffset.numRetries has no effect" in caplog.text
