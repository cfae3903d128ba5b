"""The results table: medians of the rounds, ratios, goals met or missed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.line import Figure, Line
from bench.runner import Results
from bench.systems.servers import CEILING, HEADRACE

COLUMNS = ("line", "figure", "Headrace", "against", "its figure", "ratio", "goal", "verdict")
NONE = "–"


@dataclass(frozen=True)
class Row:
    line: str  # the line's name
    title: str
    figure: Figure
    ours: float
    against: str = ""
    theirs: float | None = None
    goal: float | None = None  # goal for the ratio, or for our figure if there is no baseline

    @property
    def ratio(self) -> float | None:
        """Return None without a baseline or if its figure is zero."""
        return self.ours / self.theirs if self.theirs else None

    @property
    def met(self) -> bool | None:
        judged = self.ours if self.theirs is None else self.ratio
        if self.goal is None or judged is None:
            return None
        return judged >= self.goal if self.figure.more_is_better else judged <= self.goal

    def cells(self) -> tuple[str, ...]:
        digits = self.figure.digits
        sign = "≥" if self.figure.more_is_better else "≤"
        times = "" if self.theirs is None else " ×"
        return (
            self.title,
            self.figure.title,
            f"{self.ours:,.{digits}f}",
            self.against or NONE,
            NONE if self.theirs is None else f"{self.theirs:,.{digits}f}",
            NONE if self.ratio is None else f"{self.ratio:.2f} ×",
            NONE if self.goal is None else f"{sign} {self.goal:.3g}{times}",
            {True: "met", False: "missed", None: NONE}[self.met],
        )


def make_rows(lines: Sequence[Line], results: Results) -> list[Row]:
    rows = []
    for line in lines:
        rounds = results.rounds.get(line.name, {})
        for figure in line.figures:
            medians = {
                name: statistics.median(one.figures[figure.key] for one in measurements)
                for name, measurements in rounds.items()
                if figure.key in measurements[0].figures  # some figures exist for one system only
            }
            if HEADRACE not in medians:
                continue
            ours = medians[HEADRACE]
            against = [(name, goal) for name, goal in _baselines(line, figure) if name in medians]
            rows += [Row(line.name, line.title, figure, ours, name, medians[name], goal) for name, goal in against]
            if not against:
                rows.append(Row(line.name, line.title, figure, ours, goal=figure.goal_absolute))
    return rows


def _baselines(line: Line, figure: Figure) -> list[tuple[str, float | None]]:
    """Return the systems to compare with and their goals. Only a line's first figure is compared with the ceiling."""
    others = [(name, figure.goal) for name in line.against if name != CEILING]
    return [*others, (CEILING, figure.ceiling_goal)] if figure == line.figures[0] else others


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Print with rich on a terminal, tab-separated otherwise."""
    if not console.is_terminal:
        for cells in (COLUMNS, *(row.cells() for row in rows)):
            print("\t".join(cells))
        return
    table = Table(*COLUMNS, title="Headrace against others, in one interleaved run")
    styles = {True: "green", False: "red", None: ""}
    for row in rows:
        table.add_row(*row.cells(), style=styles[row.met])
    console.print(table)


def markdown_table(rows: Sequence[Row]) -> str:
    lines = [COLUMNS, tuple("---" if at < 2 else "---:" for at in range(len(COLUMNS))), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def verdict(rows: Sequence[Row]) -> str:
    judged = [row for row in rows if row.met is not None]
    missed = [row for row in judged if not row.met]
    text = f"{len(judged) - len(missed)} of {len(judged)} goals met"
    if missed:
        text += "; missed: " + ", ".join(
            f"{row.line} {row.figure.title} against {row.against or 'the clock'}" for row in missed
        )
    return text
