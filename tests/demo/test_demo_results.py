"""The expected results, and their comparison with the actual ones."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from headrace.base.errors import CorruptData
from headrace.demo.results import expected as results
from headrace.demo.results import tables
from headrace.demo.results.expected import GAP_MS, RESULTS, PageViews, Session, sessions_of
from headrace.demo.results.summary import Summary, compare, lines
from headrace.demo.shop.events import clicks_among, orders_among
from headrace.demo.shop.layout import Layout

EVENTS = 20_000


@pytest.mark.parametrize("closings", [[EVENTS], [7_000, EVENTS]], ids=["a day", "two days"])
def test_every_click_is_in_one_window_and_one_session(closings: list[int]) -> None:
    layout = Layout(closings)
    views: Counter[Any] = results.expected_page_views(layout, EVENTS)
    sessions: Counter[Any] = results.expected_sessions(layout, EVENTS)
    clicks = clicks_among(EVENTS)
    assert sum(row.clicks for row in views) == sum(row.clicks for row in sessions) == clicks
    assert results.expected_enriched_orders(layout, EVENTS).total() == orders_among(EVENTS)
    assert max(views.values()) == max(sessions.values()) == 1
    assert all(row.minute_ms % results.WINDOW_MS == 0 for row in views)


def test_a_session_ends_after_a_gap_between_clicks() -> None:
    times = [0, 1_000, GAP_MS + 1_000, 2 * GAP_MS + 1_001]
    assert sessions_of(7, times) == [Session(7, 0, GAP_MS + 1_000, 3), Session(7, times[-1], times[-1], 1)]


def test_rows_are_read_from_json_and_from_parquet() -> None:
    at = datetime(2026, 1, 1, 9, 1, tzinfo=UTC)
    wanted = PageViews(1_767_258_060_000, "home", 12)
    for minute in (at, at.replace(tzinfo=None), "2026-01-01T09:01:00.000Z", "2026-01-01T10:01:00.000+01:00"):
        assert results.page_views_row({"minute": minute, "page": "home", "clicks": 12}) == wanted
    order = {"id": 1, "customer": 2, "name": "Ada", "city": "Basel", "product": "hat", "cents": 5, "at": at}
    assert results.enriched_order_row(order) == (1, 2, "Ada", "Basel", "hat", 5, 1_767_258_060_000)
    session = {"visitor": 3, "first_click": at, "last_click": at, "clicks": 1}
    assert results.session_row(session) == (3, 1_767_258_060_000, 1_767_258_060_000, 1)


# --- summary

A, B, C = (PageViews(0, page, 1) for page in "abc")


def test_lost_wrong_and_duplicate_rows_are_distinguished() -> None:
    right = compare("here", Counter([A, B]), Counter([B, A]))
    assert right.is_right and right.found == right.wanted == 2
    wrong = compare("here", Counter([A, B]), Counter([A, A, A, C]))
    assert not wrong.is_right
    assert (wrong.lost, wrong.wrong, wrong.doubled, wrong.doubled_rows) == ([B], [C], [A], 2)


def test_the_summary_reports_correct_lost_and_duplicate_rows() -> None:
    right = compare("topic shop-sessions", Counter([A, B]), Counter([A, B]))
    wrong = compare("Parquet sessions", Counter([A, B]), Counter([A, A]))
    text = "\n".join(lines(Summary(1_000_000, [], [right], 0)))
    assert "1 000 000 events: 900 000 clicks and 100 000 orders, each in its topic once" in text
    assert "2 of          2 rows  right, each once" in text and "events in = events out" in text
    text = "\n".join(lines(Summary(10, ["shop-clicks-0 offset 1: b'x'"], [right, wrong], 3)))
    assert "1 lost, 1 twice" in text and "do NOT match the events" in text
    assert "lost: PageViews(minute_ms=0, page='b', clicks=1)" in text
    assert "1 of them wrong" in text and "3 files of killed attempts" in text
    assert not Summary(10, ["x"], [right], 0).is_right and not Summary(10, [], [wrong], 0).is_right


# --- tables


def log(table: Path, name: str, *entries: Any) -> None:
    (table / tables.LOG).mkdir(exist_ok=True)
    entry_lines = [
        json.dumps({"path": f"file:///some/where/else/{file}", "action": action}) for file, action in entries
    ]
    (table / tables.LOG / name).write_text("\n".join([tables.FORMAT, *entry_lines]))


def test_a_table_consists_of_the_files_in_its_log(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "killed"):
        parquet.write_table(pa.table({"name": [name]}), tmp_path / f"{name}.parquet")
    assert tables.files_of(tmp_path) == [] and list(tables.rows_of(tmp_path)) == []
    log(tmp_path, "0", ("a.parquet", "add"))
    log(tmp_path, "1", ("b.parquet", "add"))
    log(tmp_path, ".2.tmp", ("killed.parquet", "add"))
    assert [row["name"] for row in tables.rows_of(tmp_path)] == ["a", "b"]
    assert tables.left_over(tmp_path) == 2


def test_a_compacted_log_replaces_all_earlier_entries(tmp_path: Path) -> None:
    log(tmp_path, "8", ("x.parquet", "add"))
    log(tmp_path, "9.compact", ("a.parquet", "add"), ("b.parquet", "add"), ("a.parquet", "delete"))
    log(tmp_path, "10", ("c%20d.parquet", "add"))
    assert [path.name for path in tables.files_of(tmp_path)] == ["b.parquet", "c d.parquet"]


@pytest.mark.parametrize("text", ["v2\n{}", "v1\n{", "v1\n{}", "v1\n[]", ""])
def test_an_unreadable_table_log_is_reported_with_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / tables.LOG).mkdir()
    (tmp_path / tables.LOG / "0").write_text(text)
    with pytest.raises(CorruptData, match="_spark_metadata/0"):
        tables.files_of(tmp_path)


def test_result_names_and_topics_are_unique() -> None:
    assert len({one.name for one in RESULTS} | {one.topic for one in RESULTS}) == 6
