"""Runner of all checks, or of those named; it prints a table and exits with 1 unless all of them pass."""

from __future__ import annotations

import sys
import time
import traceback
from dataclasses import dataclass

import tools.prove.checks  # noqa: F401 (fills the registry)
from tools.prove.registry import CHECKS, WORK, Check, NotRun

REASON_MAX = 300


@dataclass
class Outcome:
    name: str
    verdict: str  # PASS, FAIL or NOT RUN
    figure: str
    seconds: float


def run(check: Check) -> Outcome:
    """Run one check and print its verdict; a failure is printed with its traceback, not raised."""
    print(f"{check.name}: {check.promise}", flush=True)
    started = time.monotonic()
    try:
        verdict, figure = "PASS", check.run()
    except NotRun as reason:
        verdict, figure = "NOT RUN", str(reason)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        traceback.print_exc()
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        verdict, figure = "FAIL", f"{type(error).__name__}: {first_line}"[:REASON_MAX]
    outcome = Outcome(check.name, verdict, figure, time.monotonic() - started)
    print(f"  {verdict} {figure} ({outcome.seconds:.1f} s)", flush=True)
    return outcome


def plain_table(outcomes: list[Outcome]) -> str:
    rows = [("check", "verdict", "seconds", "figure")]
    rows += [(o.name, o.verdict, f"{o.seconds:.1f}", o.figure) for o in outcomes]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "".join(
        f"{name:<{widths[0]}}  {verdict:<{widths[1]}}  {seconds:>{widths[2]}}  {figure}\n"
        for name, verdict, seconds, figure in rows
    )


def show(outcomes: list[Outcome]) -> None:
    """Write the table to .work/prove.txt and print it."""
    text = plain_table(outcomes)
    WORK.mkdir(exist_ok=True)
    (WORK / "prove.txt").write_text(text)
    if not sys.stdout.isatty():
        print(f"\n{text}", end="")
        return
    from rich.console import Console
    from rich.table import Table

    colours = {"PASS": "green", "FAIL": "red", "NOT RUN": "yellow"}
    table = Table("check", "verdict", "seconds", "figure")
    for outcome in outcomes:
        colour = colours[outcome.verdict]
        table.add_row(
            outcome.name,
            f"[{colour}]{outcome.verdict}[/]",
            f"{outcome.seconds:.1f}",
            outcome.figure.replace("[", r"\["),
        )
    Console().print(table)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"there is no check called {', '.join(unknown)}; the checks are: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    outcomes = [run(CHECKS[name]) for name in names or CHECKS]
    show(outcomes)
    return 0 if all(outcome.verdict == "PASS" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
