"""Output of a run: a JSON file with all rounds and, on request, the table and the plot in docs/."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.paths import ROOT
from bench.report import Row, markdown_table, verdict
from bench.runner import Results

PAGE = ROOT / "docs" / "performance.md"
PLOT = "performance-{chapter}.png"
BEGIN, END = "<!-- bench {chapter}: begin -->", "<!-- bench {chapter}: end -->"


@dataclass(frozen=True)
class Run:
    when: datetime
    command: str
    machine: dict[str, str]
    settings: dict[str, str]  # rounds, seconds and similar
    results: Results
    rows: Sequence[Row]


def write_json(run: Run, work: Path) -> Path:
    path = work / f"{run.when:%Y%m%dT%H%M%SZ}.json"
    rounds = {
        line: {name: [asdict(measurement) for measurement in rounds] for name, rounds in by_name.items()}
        for line, by_name in run.results.rounds.items()
    }
    rows = [
        {
            "line": row.line,
            "figure": row.figure.key,
            "headrace": row.ours,
            "against": row.against,
            "theirs": row.theirs,
            "ratio": row.ratio,
            "goal": row.goal,
            "met": row.met,
        }
        for row in run.rows
    ]
    document = {
        "when": run.when.isoformat(),
        "command": run.command,
        "machine": run.machine,
        "settings": run.settings,
        "skipped": run.results.skipped,
        "rows": rows,
        "rounds": rounds,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def generated_part(run: Run, chapter: str) -> str:
    machine = " · ".join(f"{name}: {value}" for name, value in run.machine.items())
    settings = " · ".join(f"{name}: {value}" for name, value in run.settings.items())
    skipped = "".join(f"\n\n{name} was not measured: {reason}." for name, reason in run.results.skipped.items())
    return (
        f"`{run.command}` on {run.when:%Y-%m-%d %H:%M} UTC · {settings}\n\n"
        f"{machine}\n\n**{verdict(run.rows)}**{skipped}\n\n{markdown_table(run.rows)}\n\n"
        f"![Ratios of Headrace to the others, with the goals]({PLOT.format(chapter=chapter)})"
    )


def write_page(run: Run, chapter: str, page: Path = PAGE) -> None:
    """Replace the text between the chapter's markers, leaving the rest of the page alone."""
    first, last = BEGIN.format(chapter=chapter), END.format(chapter=chapter)
    before, begin, rest = page.read_text().partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{page} needs the markers {first} and {last}")
    page.write_text(f"{before}{first}\n{generated_part(run, chapter)}\n{last}{after}")


def utc_now() -> datetime:
    return datetime.now(UTC)
