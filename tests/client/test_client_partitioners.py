"""Choosing partitions: round robin, sticky with and without queue sizes, and Arrow rows without an object per row."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.producer.arrow_rows import by_partition, record_batches
from headrace.client.producer.partitioners import RoundRobin, Sticky
from headrace.records.kernel import partition_for_key


def sticky(loads: list[int] | None = None, adaptive: bool = True, batch_bytes: int = 100) -> Sticky:
    def look(topic: str, count: int) -> list[int]:
        return [0] * count if loads is None else loads

    return Sticky(Random(1), batch_bytes=batch_bytes, adaptive=adaptive, loads=look)


def test_round_robin_cycles_through_the_partitions_of_each_topic() -> None:
    robin = RoundRobin()
    assert [robin("a", None, None, 3) for _ in range(4)] == [0, 1, 2, 0]
    assert robin("b", b"k", None, 3) == 0
    assert robin.turns("a", 3, 5) == 1 and robin("a", None, None, 3) == 0
    assert robin("a", None, None, 1) == 0


def test_a_sticky_partition_stays_until_a_batch_is_full() -> None:
    choice = sticky()
    first = choice.partition("t", 50)
    choice.add("t", first, 99, 50, is_full=True)
    assert choice.partition("t", 50) == first
    choice.add("t", first, 1, 50, is_full=False)  # enough bytes, but the batch is not full
    assert choice.partition("t", 50) == first
    choice.add("t", first, 99, 50, is_full=False)
    assert choice.partition("t", 50) == first
    choice.add("t", first, 1, 50, is_full=False)  # twice the batch size: switch
    seen: set[int] = set()
    for _ in range(300):
        partition = choice.partition("t", 50)
        seen.add(partition)
        choice.add("t", partition, 100, 50, is_full=True)
    assert len(seen) > 40
    assert choice.partition("t", 1) == 0  # the topic was recreated with fewer partitions


def test_sticky_prefers_short_queues_and_skips_partitions_without_a_leader() -> None:
    choice = sticky([0, 9, -1, 9])
    counts: Counter[Any] = Counter()
    for _ in range(1200):
        partition = choice.partition("t", 4)
        counts[partition] += 1
        choice.add("t", partition, 100, 4, is_full=True)
    assert counts[2] == 0 and counts[0] > 5 * counts[1] > 0
    even = sticky([0, 9, -1, 9], adaptive=False)
    counts = Counter()
    for _ in range(1200):
        partition = even.partition("t", 4)
        counts[partition] += 1
        even.add("t", partition, 100, 4, is_full=True)
    assert counts[2] == 0 and min(counts[0], counts[1], counts[3]) > 300
    assert sticky([-1, -1]).partition("t", 2) in (0, 1)  # no leader at all: any partition will do


def places(rows: pa.Table, count: int, **named: Any) -> list[tuple[int | None, str]]:
    options: dict[str, Any] = {"by_key": True, "custom": None, "topic": "t"} | named
    return [
        (partition, row["value"])
        for batch in record_batches(rows)
        for partition, some in by_partition(batch, count, **options)
        for row in some.to_pylist()
    ]


@settings(deadline=None, max_examples=60)
@given(
    keys=st.lists(st.none() | st.binary(max_size=8), max_size=60),
    count=st.integers(1, 9),
    data=st.data(),
)
def test_rows_are_partitioned_like_single_records(keys: list[bytes | None], count: int, data: st.DataObject) -> None:
    explicit_partitions = data.draw(
        st.none() | st.lists(st.none() | st.integers(0, count - 1), min_size=len(keys), max_size=len(keys))
    )
    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(range(len(keys)), pa.int64()).cast(pa.utf8())}
    if explicit_partitions is not None:
        columns["partition"] = pa.array(explicit_partitions, pa.int16())
    rows = pa.table(columns)
    if len(keys) > 3:
        rows = pa.concat_tables([rows.slice(0, 3), rows.slice(3)])
    expected: dict[int | None, list[str]] = {}
    for number, key in enumerate(keys):
        place = None if key is None else partition_for_key(key, count)
        if explicit_partitions is not None and explicit_partitions[number] is not None:
            place = explicit_partitions[number]
        expected.setdefault(0 if place is None and count == 1 and explicit_partitions is None else place, []).append(
            str(number)
        )
    found: dict[int | None, list[str]] = {}
    for partition, value in places(rows, count):
        found.setdefault(
            0 if partition is None and count == 1 and explicit_partitions is None else partition, []
        ).append(value)
    assert found == expected  # in order


def test_rows_are_partitioned_by_round_robin_or_a_custom_function() -> None:
    rows = pa.table({"key": [b"a"] * 5, "value": ["0", "1", "2", "3", "4"]})
    robin = RoundRobin()
    assert places(rows, 2, custom=robin) == [(0, "0"), (0, "2"), (0, "4"), (1, "1"), (1, "3")]
    assert places(rows, 2, custom=robin)[0] == (0, "1")  # continues where the last call ended
    calls: list[tuple[str, bytes, bytes, int]] = []

    def custom(topic: str, key: bytes, value: bytes, count: int) -> int | None:
        calls.append((topic, key, value, count))
        return None if value == b"2" else int(value) % count

    assert places(rows, 3, custom=custom) == [(0, "0"), (0, "3"), (1, "1"), (1, "4"), (None, "2")]
    assert calls[1] == ("t", b"a", b"1", 3)
    assert places(rows, 3, by_key=False) == [(None, str(number)) for number in range(5)]


@pytest.mark.parametrize("rows", [pa.table({"value": ["x"]}), pa.table({"value": []})])
def test_empty_record_batches_are_dropped(rows: pa.Table) -> None:
    assert len(record_batches(rows)) == rows.num_rows
