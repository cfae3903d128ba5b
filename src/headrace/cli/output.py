"""Output of commands: tables for a terminal, plain columns for a pipe, JSON for scripts, and progress."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from headrace.base.errors import ErrorCode, KafkaError

LINE_EVERY_S = 5.0  # interval between progress lines when standard error is not a terminal
FOLDED_WIDTH_MIN = 8  # minimum width of a folded column, in characters
_GAP = "  "
_FRAME_WIDTH = 3  # extra width of each column in a table with frames: a bar and two spaces
_UNITS_S = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def show_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with frames on a terminal, plain columns elsewhere.

    The first column holds names and is never folded: an id on two lines cannot be copied or searched for. A table that is still too wide
    is printed in plain columns, and the terminal wraps its lines.
    """
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in [list(columns), *texts]) for index in range(len(columns))]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Column, Table
        from rich.text import Text

        console = Console()
        foldable = [min(width, FOLDED_WIDTH_MIN) for width in widths[1:]]
        if widths[0] + sum(foldable) + _FRAME_WIDTH * len(columns) + 1 <= console.width:
            first = Column(columns[0], no_wrap=True, min_width=widths[0])
            table = Table(
                first, *(Column(name, overflow="fold") for name in columns[1:])
            )  # folded, so that no text is cut off
            for row in texts:
                table.add_row(*map(Text, row))  # plain text: a name may look like markup
            console.print(table)
            return
    for row in [list(columns), *texts]:
        print(_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def format_duration(milliseconds: int | None) -> str | None:
    """Format a duration in its two largest units: `3 h 12 min`, `1 min 30 s`, `2.5 s`, `40 ms`; None for None."""
    if milliseconds is None:
        return None
    if milliseconds < 0:
        return f"-{format_duration(-milliseconds)}"
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.3g} s" if milliseconds < 59_950 else "1 min"
    seconds = milliseconds // 1000
    for (size, unit), (smaller, smaller_unit) in itertools.pairwise(_UNITS_S):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size} {unit} {rest} {smaller_unit}" if rest else f"{seconds // size} {unit}"
    raise AssertionError(milliseconds)


def make_error(code: int, message: str | None) -> KafkaError:
    known = ErrorCode(code)
    return KafkaError(known, (message or "") if known == code else f"error {code}: {message or ''}")


def check(code: int, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise make_error(code, message)


class Failures:
    """Counts the failures of a command that works on several objects.

    Each is printed to standard error at once; `end` exits with code 1 if there was one.
    """

    def __init__(self) -> None:
        self._count = 0

    def found(self, what: str, code: int, message: str | None) -> bool:
        if code == ErrorCode.NONE:
            return False
        self._count += 1
        print(f"headrace: {what}: {make_error(code, message)}", file=sys.stderr)
        return True

    def __bool__(self) -> bool:
        return self._count > 0

    def end(self) -> None:
        if self._count:
            sys.exit(1)


class Progress(Protocol):
    def advance(self, amount: int) -> None: ...


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Progress]:
    """Show progress on standard error: a bar on a terminal, elsewhere a line every few seconds."""
    if not sys.stderr.isatty():
        yield _Lines(label, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Task(bar, bar.add_task(label, total=total))


class _Task:
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def advance(self, amount: int) -> None:
        self._bar.advance(self._task, amount)


class _Lines:
    def __init__(self, label: str, total: int | None) -> None:
        self._label = label
        self._total = total
        self._done = 0
        self._next = time.monotonic() + LINE_EVERY_S

    def advance(self, amount: int) -> None:
        self._done += amount
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY_S
            total = f" of {self._total}" if self._total is not None else ""
            print(f"{self._label}: {self._done}{total}", file=sys.stderr)
