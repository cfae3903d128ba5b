"""The progress of a run as seen from its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import CorruptData
from headrace.base.ids import TopicPartition
from headrace.demo.director import Seen
from headrace.demo.display.state import doing
from headrace.demo.results.checkpoints import NOWHERE, Position, parse_offsets, position
from headrace.demo.results.expected import PATIENCE_MS
from headrace.demo.shop.events import bell
from headrace.demo.shop.layout import CLICK_PARTITIONS, ORDER_PARTITIONS, Layout
from headrace.demo.shop.requests import partitions_of
from headrace.demo.shop.topics import RESULTS
from headrace.demo.stages import QUERIES, SHOP, TABLES, Facts, Query, Stage, goal, lag, stage, topic_of

EVENTS = 1_000
RESULT_PARTITIONS = partitions_of(RESULTS)


def facts(
    layout: Layout,
    ends: Mapping[TopicPartition, int],
    *,
    watermark_ms: int = 0,
    behind: list[str] | tuple[Any, ...] = (),
    results: int = 50,
    open: tuple[Any, ...] | list[TopicPartition] = (),
) -> Facts:
    """Return facts in which everything was read, except one record by each query that is `behind`."""
    all_ends = {**ends, **dict.fromkeys(RESULT_PARTITIONS, results)}
    positions: dict[str, Position] = {}
    for query in QUERIES:
        offsets = {partition: end for partition, end in all_ends.items() if partition.topic == topic_of(query)}
        if query.name in behind:
            offsets[next(iter(offsets))] -= 1
        positions[query.name] = Position(3, watermark_ms if query.result.is_windowed else 0, offsets)
    return Facts(layout, all_ends, positions, open)


def closed_facts(**given: Any) -> Facts:
    layout = Layout([EVENTS])
    return facts(layout, layout.ends(EVENTS), watermark_ms=bell(0, [EVENTS]).at_ms - PATIENCE_MS, **given)


def test_the_stage_is_events_until_every_partition_is_complete() -> None:
    layout = Layout([])
    assert stage(EVENTS, facts(layout, layout.ends(EVENTS - 1))) is Stage.EVENTS
    uneven = {**layout.ends(EVENTS), CLICK_PARTITIONS[1]: 17}
    assert stage(EVENTS, facts(layout, uneven)) is Stage.EVENTS


@pytest.mark.parametrize("query", [one for one in QUERIES if one.pipeline == SHOP], ids=lambda one: one.name)
def test_the_stage_is_reading_until_every_query_has_read_all_events(query: Query) -> None:
    layout = Layout([])
    assert stage(EVENTS, facts(layout, layout.ends(EVENTS), behind=[query.name])) is Stage.READING
    assert stage(EVENTS, facts(layout, layout.ends(EVENTS))) is Stage.CLOSING


def test_a_query_that_never_ran_has_read_nothing() -> None:
    layout = Layout([])
    nothing = facts(layout, layout.ends(EVENTS))._replace(positions={})
    assert stage(EVENTS, nothing) is Stage.READING
    assert lag(QUERIES[0], nothing) == EVENTS * 9 // 10


def test_the_activity_text_matches_the_progress_of_the_queries() -> None:
    layout = Layout([])
    half = facts(layout, layout.ends(EVENTS), behind=[QUERIES[0].name])
    nothing = half._replace(positions={})
    assert doing(Seen(nothing, stage(EVENTS, nothing))) == "all events are written, none is processed yet"
    assert doing(Seen(half, stage(EVENTS, half))) == "processing events"
    assert doing(None) == doing(Seen(nothing)) == ""


def test_the_stage_is_closing_until_all_bells_are_written() -> None:
    layout = Layout([EVENTS])
    ends = layout.ends(EVENTS)
    assert stage(EVENTS, facts(layout, {**ends, CLICK_PARTITIONS[0]: ends[CLICK_PARTITIONS[0]] - 1})) is Stage.CLOSING


def test_the_stage_is_windows_until_watermarks_queries_and_transactions_are_done() -> None:
    done = closed_facts()
    assert stage(EVENTS, done) is Stage.DONE
    early = Position(3, bell(0, [EVENTS]).at_ms - PATIENCE_MS - 1, done.positions["shop.sessions"].offsets)
    assert stage(EVENTS, done._replace(positions={**done.positions, "shop.sessions": early})) is Stage.WINDOWS
    assert stage(EVENTS, closed_facts(behind=["shop.enriched_orders"])) is Stage.WINDOWS
    assert stage(EVENTS, closed_facts(open=RESULT_PARTITIONS[:1])) is Stage.WINDOWS


@pytest.mark.parametrize("query", [one for one in QUERIES if one.pipeline == TABLES], ids=lambda one: one.name)
def test_the_stage_is_storing_until_the_tables_have_all_results(query: Query) -> None:
    assert stage(EVENTS, closed_facts(behind=[query.name])) is Stage.STORING


def test_existing_events_count_toward_the_goal() -> None:
    assert goal(10, closed_facts()) == EVENTS and stage(10, closed_facts()) is Stage.DONE
    assert stage(EVENTS + 1, closed_facts()) is Stage.EVENTS
    another_day = Layout([EVENTS])
    assert stage(EVENTS, facts(another_day, another_day.ends(EVENTS + 10))) is Stage.CLOSING


# --- checkpoints

OFFSETS = """v1
{"batchWatermarkMs":1767258060000,"batchTimestampMs":1789000000000,"conf":{}}
{"shop-clicks":{"0":120,"1":119},"#ids":{"shop-clicks":"abc"}}
-"""


def test_the_position_of_a_query_is_its_last_committed_batch(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "offsets").mkdir()
    assert position(tmp_path) == NOWHERE
    for batch in (8, 9, 10):
        (tmp_path / "offsets" / str(batch)).write_text(OFFSETS)
    for name in ("8", "9", ".9.crc", ".10.tmp"):
        (tmp_path / "commits" / name).write_text("v1\n{}")
    offsets = {TopicPartition("shop-clicks", 0): 120, TopicPartition("shop-clicks", 1): 119}
    assert position(tmp_path) == Position(9, 1767258060000, offsets)


def test_a_missing_checkpoint_has_no_position(tmp_path: Path) -> None:
    assert position(tmp_path / "none") == NOWHERE


@pytest.mark.parametrize("text", ["", "v9\n{}\n", "v1\n{}\n-", "v1\nnot json\n-", OFFSETS.replace("119", '"x"')])
def test_an_unreadable_checkpoint_is_reported_with_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    (tmp_path / "offsets" / "0").write_text(text)
    with pytest.raises(CorruptData, match="offsets/0 cannot be read"):
        position(tmp_path)


def test_a_batch_without_offsets_is_parsed_as_empty() -> None:
    assert parse_offsets(0, 'v1\n{"batchWatermarkMs":0}\n-').offsets == {}


def test_shop_queries_read_the_click_and_order_topics() -> None:
    assert {topic_of(one) for one in QUERIES if one.pipeline == SHOP} == {
        CLICK_PARTITIONS[0].topic,
        ORDER_PARTITIONS[0].topic,
    }
