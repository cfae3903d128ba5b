"""The text that users see."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console, ConsoleDimensions

from headrace.demo.display.screens import Lines, Terminal
from headrace.demo.display.state import hints_of, serves
from headrace.demo.display.view import FIRST_BATCH, Flow, Part, State, Work, clock, draw, duration, line
from headrace.demo.folders import Folders
from headrace.demo.processes import Child, Register
from headrace.demo.supervisor import NODE, PIPELINES, Supervisor
from headrace.local_cluster.layout import NodePlan

ERASED = "\x1b[2J"
MINUTE = 1_767_258_000_000
STARTING = State(
    3.0, "the node starts", [Part("node", "runs", pid=17)], notices=["the node was killed"], hints=["look: there"]
)
FULL = State(
    3_725.0,
    "events happen",
    [
        Part("node", "runs", "localhost:9092", 17, 61_000_000),
        Part("generator", "is done"),
        Part("pipelines", "starts", "Spark is starting", 19),
    ],
    [Flow("clicks", 90_000, 900.4), Flow("orders", 10_000, 100.0)],
    [
        Work("page_views", "running", 912.0, 300, 41, 170, 20),
        Work("sessions", "waiting", 0.0, 300, 641, 11_000, 0, error="the broker is gone " * 20),
        Work("enriched_orders", "running", 99.6, 0, 0, 10_000, 0),
    ],
    {MINUTE: {"home": 1_700, "help": 90}, MINUTE + 60_000: {"home": 1_650, "search": 800}},
    100_000,
    99_000,
    200_000,
    ["one", "two", "three", "the node (process 5) was killed, and is started again"],
    ["look: headrace consume shop-sessions"],
)


def rendered(state: State, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        console.print(draw(state))
    return captured.get().splitlines()


def test_the_full_view_fits_on_a_terminal_of_80_by_24() -> None:
    lines = rendered(FULL)
    assert len(lines) <= 24 and max(map(len, lines)) <= 80


def test_the_echo_of_ctrl_c_fits_behind_every_line() -> None:
    assert max(map(len, rendered(FULL, 60))) <= 58


def test_the_last_hint_is_not_truncated_on_80_columns(tmp_path: Path) -> None:
    supervisor = Supervisor([Child(name, [], tmp_path, {}) for name in (NODE, PIPELINES)], Register(tmp_path / "x"))
    hints = hints_of(supervisor, [NodePlan(id=1, port=9092, http_port=9404)], Folders(tmp_path, tmp_path))
    hints[-1] = hints[-1].replace("None", "4194304")  # the largest process id
    assert rendered(State(0.0, "x", hints=hints))[-1].endswith("the next run resumes")


def test_rates_lag_windows_and_hints_are_shown() -> None:
    text = "\n".join(rendered(FULL))
    for expected in (
        "1:02:05",
        "events happen",
        "localhost:9092",
        "61 MB",
        "process 17",
        "100 000 of 200 000",
        "enriched orders",
    ):
        assert expected in text
    (page_views,) = (one for one in rendered(FULL) if "page views" in one)
    assert page_views.split() == ["clicks", "90", "000", "900", "page", "views", "912", "300", "41", "170", "20"]
    (sessions,) = (one for one in rendered(FULL) if "sessions" in one and "waiting" in one)
    assert "641" in sessions
    assert "09:00  09:01" in text and "the broker is gone" in text
    (home,) = (one for one in rendered(FULL) if one.startswith(" home"))
    assert home.split() == ["home", "1", "700", "1", "650"]
    assert "started again" in text and " two" in rendered(FULL) and " one" not in rendered(FULL)
    assert "look: headrace consume" in text


def test_the_first_view_shows_activity_news_and_hints() -> None:
    text = "\n".join(rendered(STARTING))
    assert "the node starts · 0:00:03" in text and "the node was killed" in text and "look: there" in text


def test_an_unbounded_run_has_no_progress_bars() -> None:
    endless = "\n".join(rendered(State(1.0, "events happen", flows=FULL.flows, works=FULL.works)))
    assert "processed" not in endless and "come when the first minute is complete" in endless


def test_text_that_looks_like_markup_is_shown_verbatim() -> None:
    assert "[red]" in "\n".join(rendered(State(0.0, "x", notices=["[red] is no colour"])))


def test_the_line_view_summarizes_the_state() -> None:
    assert line(FULL) == (
        "1:02:05 events happen: 100 000 of 200 000 events (1 000/s), 99 000 processed; pipelines: Spark is starting; "
        "170 page views, 11 000 sessions, 10 000 enriched orders; clicks at 09:01: home 1 650, search 800"
    )
    first = State(20.0, "events happen", works=[Work("page_views", FIRST_BATCH, 0.0, 7, 0, 0, 0), FULL.works[2]])
    assert "0 processed; page views: in the first batch, which takes longest; 0 page views, 10 000" in line(first)
    assert line(STARTING) == "0:00:03 the node starts: 0 events (0/s), 0 processed; no results"


def test_lines_are_printed_every_five_seconds_and_news_immediately() -> None:
    out = io.StringIO()
    lines = Lines(out)
    for second in range(12):
        notices = ["something happened"] if second >= 7 else []
        lines.show(State(float(second), "events happen", notices=notices))
    lines.show(State(12.0, "the shop closes", notices=["something happened"]))
    lines.write("done")
    printed = out.getvalue().splitlines()
    assert [one.split()[0] for one in printed] == ["0:00:00", "0:00:05", "0:00:07", "0:00:10", "0:00:12", "done"]
    assert printed[2] == "0:00:07 something happened"


def test_the_terminal_shows_the_view_and_messages() -> None:
    out = io.StringIO()
    terminal = Terminal(Console(file=out, force_terminal=True, width=80, highlight=False))
    terminal.show(FULL)
    terminal.close()
    terminal.write("[done]")
    assert "a web shop" in out.getvalue() and "[done]" in out.getvalue()


def test_a_resized_terminal_is_cleared_and_redrawn() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=30, highlight=False)
    terminal = Terminal(console)
    terminal.show(FULL)
    terminal.show(FULL)
    assert ERASED not in out.getvalue()
    console.size = ConsoleDimensions(60, 20)
    terminal.show(FULL)
    before, _, drawn_anew = out.getvalue().rpartition(ERASED)
    assert before and "a web shop" in drawn_anew
    terminal.show(FULL)
    terminal.close()
    assert out.getvalue().count(ERASED) == 1


def test_the_metrics_address_is_not_truncated_on_80_columns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    supervisor = Supervisor([Child(name, [], log, {}) for name in (NODE, PIPELINES)], Register(tmp_path / "processes"))
    folders = Folders(tmp_path / "a-rather-long-name-of-a-folder", tmp_path / "runtime")
    shown = "\n".join(
        rendered(State(0.0, "x", hints=hints_of(supervisor, [NodePlan(id=1, port=19692, http_port=19404)], folders)))
    )
    assert "http://localhost:19404/metrics" in shown and "-b localhost:19692" in shown


def test_the_startup_line_shows_addresses_and_ports_in_use() -> None:
    node = NodePlan(id=1, port=9092, http_port=9404)
    assert serves([node], 9092, 9404) == "the node serves on localhost:9092, metrics on http://localhost:9404/metrics"
    assert serves([NodePlan(id=1, port=9095, http_port=9404)], 9092, 9404).endswith("(port 9092: in use)")
    assert serves([node, NodePlan(id=2, port=9094, http_port=9405)], 9092, 9404) == (
        "2 brokers serve on localhost:9092, localhost:9094,"
        " metrics on http://localhost:9404/metrics, http://localhost:9405/metrics"
    )


def test_durations_and_clock_times_are_formatted() -> None:
    assert duration(59.9) == "0:00:59" and duration(36_000) == "10:00:00" and clock(MINUTE) == "09:00"
