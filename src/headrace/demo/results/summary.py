"""The summary of a run: expected and actual rows of each result, and one verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.demo.results.expected import Row, Rows
from headrace.demo.shop.events import clicks_among, orders_among

SHOWN_MAX = 3


class Compared(NamedTuple):
    where: str
    wanted: int
    found: int
    lost: Sequence[Row]  # the first few missing rows
    lost_rows: int
    wrong: Sequence[Row]  # the first few unexpected rows
    wrong_rows: int
    doubled: Sequence[Row]  # the first few expected rows that occur too often
    doubled_rows: int

    @property
    def is_right(self) -> bool:
        return not (self.lost_rows or self.wrong_rows or self.doubled_rows)


class Summary(NamedTuple):
    events: int
    wrong_events: Sequence[str]
    compared: Sequence[Compared]
    files_left: int

    @property
    def is_right(self) -> bool:
        return not self.wrong_events and all(one.is_right for one in self.compared)


def compare(where: str, expected: Rows, found: Rows) -> Compared:
    lost = [row for row in expected if row not in found]
    wrong = [row for row in found if row not in expected]
    doubled = [row for row, times in found.items() if row in expected and times > expected[row]]
    return Compared(
        where,
        expected.total(),
        found.total(),
        lost[:SHOWN_MAX],
        len(lost),
        wrong[:SHOWN_MAX],
        sum(found[row] for row in wrong),
        doubled[:SHOWN_MAX],
        sum(found[row] - expected[row] for row in doubled),
    )


def number(value: float) -> str:
    """Format a number with spaces between thousands, which no language reads as a decimal point."""
    return f"{value:,.0f}".replace(",", " ")


def lines(summary: Summary) -> list[str]:
    clicks, orders = clicks_among(summary.events), orders_among(summary.events)
    text = [
        f"{number(summary.events)} events: {number(clicks)} clicks and {number(orders)} orders, "
        + ("each in its topic once" if not summary.wrong_events else f"{len(summary.wrong_events)} of them wrong")
    ]
    text += [f"    {one}" for one in summary.wrong_events[:SHOWN_MAX]]
    width = max(len(one.where) for one in summary.compared)
    for one in summary.compared:
        verdict = "right, each once" if one.is_right else _faults(one)
        text.append(f"  {one.where:<{width}}  {number(one.found):>10} of {number(one.wanted):>10} rows  {verdict}")
        for what, rows in (("lost", one.lost), ("not expected", one.wrong), ("there twice", one.doubled)):
            text += [f"      {what}: {row}" for row in rows]
    if summary.files_left:
        text.append(
            f"  {number(summary.files_left)} files of killed attempts are in the folders of the tables, but not part of the tables"
        )
    text.append(
        "events in = events out: every click is in one window and one session, every order is present once"
        if summary.is_right
        else "the results do NOT match the events"
    )
    return text


def _faults(one: Compared) -> str:
    faults = ((one.lost_rows, "lost"), (one.wrong_rows, "not expected"), (one.doubled_rows, "twice"))
    return ", ".join(f"{number(rows)} {what}" for rows, what in faults if rows)
