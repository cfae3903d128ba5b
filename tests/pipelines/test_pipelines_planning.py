"""What a batch reads and how it is split into tasks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ConfigError
from headrace.base.ids import TopicPartition
from headrace.pipelines.source.offsets import StreamOffset, read_offset
from headrace.pipelines.source.planning import (
    Layout,
    Range,
    continue_from,
    count_between,
    gaps,
    limit_bytes,
    limit_offsets,
    ranges_between,
    retreats,
    split_ranges,
)

A0, A1, A2, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("a", 2), TopicPartition("b", 0)
PARTITIONS = (A0, A1, A2, B0)
sizes = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 10**12), min_size=1)


def layout(*partitions: TopicPartition, **ids: Any) -> Layout:
    return Layout(frozenset(partitions), ids)


def test_offsets_serialize_like_sparks_kafka_source_plus_our_own_keys() -> None:
    offset = StreamOffset({B0: 3, TopicPartition("a", 10): 1, A2: 2}, {"b": "id", "gone": "x"}, {A2: 5, B0: 0})
    assert list(offset.to_json()) == ["a", "b", "#ids", "#lost"]
    assert offset.to_json() == {
        "a": {"2": 2, "10": 1},
        "b": {"0": 3},
        "#ids": {"b": "id"},
        "#lost": {"a": {"2": 5}},
    }
    assert list(offset.to_json()["a"]) == ["2", "10"]
    assert read_offset(offset.to_json()).to_json() == offset.to_json()


def test_a_checkpoint_of_sparks_kafka_source_can_be_read() -> None:
    assert read_offset({"a": {"0": 7}}) == StreamOffset({A0: 7})


@pytest.mark.parametrize("found", [{"a": 3}, {"a": {"x": 3}}, [1], 7, {"logOffset": 3}, {"a": {"0": None}}])
def test_a_checkpoint_without_offsets_raises_config_error(
    found: dict[str, dict[str, int | None] | int] | list[int] | int,
) -> None:
    with pytest.raises(ConfigError, match="checkpoint holds no offsets"):
        read_offset(found)  # type: ignore[arg-type]


def test_added_partitions_start_at_offset_0() -> None:
    progress = continue_from(StreamOffset({A0: 7}, {"a": "1"}), layout(A0, A1, a="1"))
    assert progress == ({A0: 7, A1: 0}, frozenset(), [])


def test_partitions_of_a_new_topic_have_no_start_offset_yet() -> None:
    progress = continue_from(StreamOffset({A0: 7}, {"a": "1"}), layout(A0, B0, a="1", b="2"))
    assert progress == ({A0: 7}, frozenset({B0}), [])


def test_a_recreated_topic_is_a_loss_and_restarts_at_offset_0() -> None:
    progress = continue_from(StreamOffset({A0: 7, B0: 9}, {"a": "1", "b": "5"}), layout(A0, A1, B0, a="2", b="5"))
    assert progress.start == {A0: 0, A1: 0, B0: 9}
    assert [loss.what for loss in progress.losses] == ["topic a was deleted and recreated: its id was 1 and is 2"]


def test_a_topic_without_a_known_id_is_assumed_unchanged() -> None:
    assert continue_from(StreamOffset({A0: 7}), layout(A0, a="2")).losses == []
    assert continue_from(StreamOffset({A0: 7}, {"a": "1"}), layout(A0)).losses == []


def test_a_deleted_topic_is_a_loss() -> None:
    progress = continue_from(StreamOffset({A0: 7, A1: 3, B0: 9}), layout(B0))
    assert progress.start == {B0: 9}
    assert [loss.what for loss in progress.losses] == [
        "topic a is gone; a-0 up to offset 7, a-1 up to offset 3 had been read"
    ]


def test_a_missing_partition_is_a_loss() -> None:
    progress = continue_from(StreamOffset({A0: 7, A1: 3}), layout(A0))
    assert progress.start == {A0: 7}
    assert "a-1: gone, although topic a exists" in progress.losses[0].what


def test_a_gap_names_the_partition_and_both_offsets() -> None:
    (loss,) = gaps({A0: 5, A1: 5, A2: 5}, {A0: 5, A1: 9})
    assert loss.what == "a-1: offset 5 was to be read, but the log now starts at 9"
    assert (loss.partition, loss.offsets) == (A1, 4)


def test_partitions_whose_log_end_is_below_the_read_offset_are_found() -> None:
    assert retreats({A0: 5, A1: 5, A2: 5}, {A0: 5, A1: 4, A2: 6}) == [A1]


def test_an_offset_limit_is_shared_in_proportion_to_available_offsets() -> None:
    start = {A0: 100, A1: 0, A2: 0}
    assert limit_offsets(start, {A0: 400, A1: 100, A2: 0}, 40) == {A0: 130, A1: 10, A2: 0}


def test_every_partition_with_new_offsets_advances_under_a_limit() -> None:
    assert limit_offsets({A0: 0, A1: 0}, {A0: 1_000_000, A1: 1}, 10) == {A0: 9, A1: 1}


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    assert limit_offsets({A0: 0, A1: 3}, {A0: 5, A1: 3}, 5) == {A0: 5, A1: 3}


@given(latest=sizes, limit=st.integers(1, 10**13))
@settings(deadline=None, max_examples=60)
def test_a_limit_is_exceeded_by_at_most_one_offset_per_partition(latest: dict[TopicPartition, int], limit: int) -> None:
    start = dict.fromkeys(latest, 0)
    ends = limit_offsets(start, latest, limit)
    assert count_between(start, ends) <= limit + len(latest)
    assert all(0 <= ends[one] <= latest[one] for one in latest)
    if any(latest.values()):
        assert count_between(start, ends) > 0, "a stream that does not move would never end"


@given(latest=sizes, limit=st.integers(1, 10**13), size=st.floats(0.01, 10**6))
@settings(deadline=None, max_examples=60)
def test_a_byte_limit_uses_the_mean_record_size(latest: dict[TopicPartition, int], limit: int, size: float) -> None:
    start = dict.fromkeys(latest, 0)
    ends = limit_bytes(start, latest, limit, dict.fromkeys(latest, size))
    assert count_between(start, ends) * size <= limit * 1.0001 + size * len(latest)
    assert all(0 <= ends[one] <= latest[one] for one in latest)
    if any(latest.values()):
        assert count_between(start, ends) > 0


def test_a_byte_limit_ignores_partitions_of_unknown_record_size() -> None:
    assert limit_bytes({A0: 0}, {A0: 50}, 1, {}) == {A0: 50}


def test_empty_and_backward_ranges_are_left_out() -> None:
    assert ranges_between({A0: 1, A1: 5, A2: 7}, {A0: 4, A1: 5, A2: 6}) == [Range(A0, 1, 4)]


def test_each_range_is_one_task_unless_min_partitions_is_higher() -> None:
    ranges = [Range(A0, 0, 10**9), Range(A1, 0, 1)]
    assert split_ranges(ranges, None, None) == ranges
    assert split_ranges(ranges, 2, None) == ranges


def test_min_partitions_splits_the_longest_ranges() -> None:
    pieces = split_ranges([Range(A0, 0, 100), Range(A1, 0, 2)], 4, None)
    assert pieces == [Range(A0, 0, 33), Range(A0, 33, 66), Range(A0, 66, 100), Range(A1, 0, 2)]


def test_max_records_limits_the_offsets_of_a_task() -> None:
    assert split_ranges([Range(A0, 10, 20), Range(A1, 0, 3)], None, 4) == [
        Range(A0, 10, 13),
        Range(A0, 13, 16),
        Range(A0, 16, 20),
        Range(A1, 0, 3),
    ]


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), min_size=1, max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 2000),
)
@settings(deadline=None, max_examples=100)
def test_pieces_cover_the_ranges_once_and_in_order(
    found: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    ranges = [Range(TopicPartition("t", index), start, start + size) for index, (start, size) in enumerate(found)]
    pieces = split_ranges(ranges, min_partitions, max_records)
    for one in ranges:
        own = [piece for piece in pieces if piece.partition == one.partition]
        assert [own[0].start, *(piece.end for piece in own)] == [*(piece.start for piece in own), one.end]
        assert own[0].start == one.start and all(piece.size > 0 for piece in own)
    if max_records is not None:
        assert max(piece.size for piece in pieces) <= max_records
