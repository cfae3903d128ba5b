"""Renders the state of a run, for a terminal or as a line of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.demo.results.summary import number
from headrace.demo.shop.events import PAGES

RUNNING = "running"  # state of a query, as its driver reports it
FIRST_BATCH = "begins"  # the query runs, but its first batch is not complete
MINUTES_SHOWN = 6
PAGES_SHOWN = 5
NOTICES_SHOWN = 3
ECHO_COLUMNS = 2  # the terminal echoes ^C behind the last line, which must not wrap
_MEGABYTE = 1_000_000
_NAMES = (" topic", "result")
_COLUMNS = (" topic", "records", "/s", "result", "rows/s", "lag", "state", "rows", "to store")
_STYLES = {"runs": "green", "starts": "yellow", "is done": "green", "ended": "red"}


@dataclass(frozen=True)
class Part:
    """One process."""

    name: str
    condition: str  # runs, starts, is done, ended
    detail: str = ""
    pid: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Flow:
    """An input topic."""

    topic: str
    records: int
    per_s: float


@dataclass(frozen=True)
class Work:
    """The progress of one result: read, aggregated, written to a topic, stored as Parquet."""

    name: str
    condition: str  # state of its query
    rows_per_s: float
    lag: int
    state_rows: int
    rows: int  # rows in its topic
    table_lag: int  # offsets of its topic that are not yet in Parquet
    error: str = ""


@dataclass(frozen=True)
class State:
    elapsed_s: float
    stage: str
    parts: Sequence[Part] = ()
    flows: Sequence[Flow] = ()
    works: Sequence[Work] = ()
    minutes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    events: int = 0
    events_read: int = 0
    goal: int | None = None
    notices: Sequence[str] = ()
    hints: Sequence[str] = ()


def duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def clock(minute_ms: int) -> str:
    return datetime.fromtimestamp(minute_ms / 1000, UTC).strftime("%H:%M")


def draw(state: State) -> RenderableType:
    """Return the state as a renderable for a terminal of at least 80 columns and 24 lines."""
    pieces: list[RenderableType] = [_head(state), _parts(state)]
    if state.goal is not None:
        pieces.append(_bars(state))
    if state.flows:
        pieces.append(_works(state))
        pieces.append(_minutes(state))
    pieces += [_one_line(one, "red") for one in dict.fromkeys(work.error for work in state.works if work.error)]
    pieces += [_one_line(one, "yellow") for one in state.notices[-NOTICES_SHOWN:]]
    pieces += [_one_line(one, "dim") for one in state.hints]
    return Narrowed(Group(*pieces), ECHO_COLUMNS)


@dataclass(frozen=True)
class Narrowed:
    """A renderable that leaves the last columns of the terminal free."""

    inner: RenderableType
    free_columns: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.inner, options.update_width(max(1, options.max_width - self.free_columns)))


def _one_line(text: str, style: str) -> Text:
    return Text(f" {text}", style, no_wrap=True, overflow="ellipsis")


def _head(state: State) -> RenderableType:
    head = Table.grid(expand=True)
    head.add_column()
    head.add_column(justify="right")
    head.add_row(Text("Headrace · a web shop", style="bold"), Text(f"{state.stage} · {duration(state.elapsed_s)}"))
    return head


def _parts(state: State) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for part in state.parts:
        memory = "" if part.memory_bytes is None else f"{number(part.memory_bytes / _MEGABYTE)} MB"
        table.add_row(
            Text(f" {part.name}", style="bold"),
            Text(part.condition, style=_STYLES.get(part.condition, "")),
            Text("" if part.pid is None else f"process {part.pid}"),
            Text(memory),
            Text(part.detail),
        )
    return table


def _bars(state: State) -> RenderableType:
    goal = max(1, state.goal or 1)
    table = Table.grid(padding=(0, 2))
    for name, done in (("events", state.events), ("processed", state.events_read)):
        done = min(done, goal)
        table.add_row(
            Text(f" {name}", style="bold"),
            ProgressBar(total=goal, completed=done, width=36),
            Text(f"{number(done)} of {number(goal)}"),
        )
    return table


def _works(state: State) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for title in _COLUMNS:
        table.add_column(justify="left" if title in _NAMES else "right", no_wrap=True)
    table.add_row(*(Text(title, style="bold") for title in _COLUMNS))
    for flow, work in zip_longest(state.flows, state.works):
        left = ("",) * 3 if flow is None else (f" {flow.topic}", number(flow.records), number(flow.per_s))
        table.add_row(*(Text(one) for one in (*left, *_cells(work))))
    return table


def _cells(work: Work | None) -> Sequence[str]:
    if work is None:
        return ("",) * 6
    return (
        work.name.replace("_", " "),
        number(work.rows_per_s) if work.condition == RUNNING else work.condition,
        number(work.lag),
        number(work.state_rows),
        number(work.rows),
        number(work.table_lag),
    )


def _minutes(state: State) -> RenderableType:
    """Return a table of clicks by page and minute: the newest complete minutes, the most popular pages."""
    shown = sorted(state.minutes)[-MINUTES_SHOWN:]
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=12)
    for _ in range(MINUTES_SHOWN):
        table.add_column(justify="right", min_width=5)
    if not shown:
        return Text(" clicks by page and minute come when the first minute is complete", style="bold")
    table.add_row(Text(" clicks", style="bold"), *(Text(clock(one), style="bold") for one in shown))
    for page in PAGES[:PAGES_SHOWN]:
        table.add_row(Text(f" {page}"), *(Text(number(state.minutes[one].get(page, 0))) for one in shown))
    return table


def line(state: State) -> str:
    """Return the state as one line of text, for a file or a pipe."""
    of_goal = "" if state.goal is None else f" of {number(state.goal)}"
    words = [f"{duration(state.elapsed_s)} {state.stage}:"]
    words.append(f"{number(state.events)}{of_goal} events ({number(sum(flow.per_s for flow in state.flows))}/s),")
    words.append(f"{number(state.events_read)} processed;")
    words += [f"{part.name}: {part.detail};" for part in state.parts if part.condition == "starts"]
    first = [work.name.replace("_", " ") for work in state.works if work.condition == FIRST_BATCH]
    if first:
        words.append(f"{', '.join(first)}: in the first batch, which takes longest;")
    words.append(
        ", ".join(f"{number(work.rows)} {work.name.replace('_', ' ')}" for work in state.works) or "no results"
    )
    if state.minutes:
        newest = max(state.minutes)
        pages = sorted(state.minutes[newest].items(), key=lambda one: (-one[1], one[0]))[:PAGES_SHOWN]
        words.append(f"; clicks at {clock(newest)}: " + ", ".join(f"{page} {number(clicks)}" for page, clicks in pages))
    return " ".join(words).replace(" ;", ";")
