"""Run benchmark lines or chapters and print the table of ratios; needs a quiet machine."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec

from rich.console import Console
from testkit.spark_connector import VERSION as CONNECTOR_VERSION

from bench import machine
from bench.line import Line, Options
from bench.lines import all_lines, chapters
from bench.load import generator_name
from bench.measured_clients import CONFLUENT, CONNECTOR, CONNECTOR_AT_KAFKA
from bench.memory import hold_memory
from bench.native import ROOT, WORK
from bench.plot import draw
from bench.publish import PAGE, PLOT, Run, utc_now, write_json, write_page
from bench.report import make_rows, print_table, verdict
from bench.runner import Results, Runner, contestants

ROUNDS = 3
SECONDS = 3.0
RECORDS = 10_000_000
RECORDS_MIN = 20_000
HELD_ROUNDS = 3  # rounds whose bytes fit into the reserved memory; large writes can use only part of it
HELD_BYTES_PER_SECOND = 4 * 10**9


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    known = [*chapters(), *all_lines()]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all unless given")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="that count; medians are taken over them")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="a round")
    parser.add_argument(
        "--records",
        type=int,
        default=RECORDS,
        help="of 100 bytes that clients and Spark read; of 1 KB a tenth as many, of the shop's events a 25th",
    )
    parser.add_argument("--no-kafka", action="store_true", help="only Headrace and the C ceiling")
    parser.add_argument(
        "--publish", action="store_true", help="write a chapter's part of docs/performance.md, and its plot"
    )
    given = parser.parse_args(words)
    unknown = [name for name in given.names if name not in known]
    if unknown:
        parser.error(f"no line or chapter is called {', '.join(unknown)}; there are {', '.join(known)}")
    if given.publish and (len(given.names) != 1 or given.names[0] not in chapters()):
        parser.error(f"--publish needs the name of one chapter: {', '.join(chapters())}")
    if given.rounds < 1 or given.seconds <= 0 or given.records < RECORDS_MIN:
        parser.error(f"a round, a part of a second and {RECORDS_MIN} records are the least")
    return given


def main(words: Sequence[str]) -> int:
    given = parse(words)
    lines = [
        line
        for chapter, of_chapter in chapters().items()
        for line in of_chapter
        if not given.names or chapter in given.names or line.name in given.names
    ]
    data = WORK / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    options = Options(
        seconds=given.seconds, work=data, bytes_max=machine.bytes_without_throttling(), records=given.records
    )
    taking_part, skipped = contestants(data, with_kafka=not given.no_kafka)
    for name, reason in skipped.items():
        print(f"{name} does not take part: {reason}", file=sys.stderr)
    held = hold_memory(min(HELD_ROUNDS * options.bytes_max, int(given.seconds * HELD_BYTES_PER_SECOND)))
    runner = Runner(taking_part, options, given.rounds, lambda text: print(text, file=sys.stderr, flush=True))
    runner.results.skipped = skipped
    started = utc_now()
    try:
        results = runner.run(lines)
    finally:
        held.close()
        shutil.rmtree(data, ignore_errors=True)
    settings = {
        "rounds": str(given.rounds),
        "seconds per round": f"{given.seconds:g}",
        "maximum bytes per round": f"{options.bytes_max / 1e9:.1f} GB",
        "load generator": generator_name(),
        **_tls(results),
        **_measured_clients(lines, options),
    }
    command = " ".join(["python -m bench", *words])
    run = Run(started, command, machine.facts(WORK), settings, results, make_rows(lines, results))
    print_table(run.rows, Console())
    print(verdict(run.rows))
    print(f"all rounds: {write_json(run, WORK).relative_to(ROOT)}")
    if given.publish and not results.failed:
        (chapter,) = given.names
        plot = PAGE.with_name(PLOT.format(chapter=chapter))
        draw(run.rows, plot)
        write_page(run, chapter)
        print(f"published: {PAGE.relative_to(ROOT)}, {plot.relative_to(ROOT)}")
    else:
        draw(run.rows, WORK / "performance.png")
    for name, reason in results.failed.items():
        print(f"bench: {name} failed{', nothing is published' if given.publish else ''}: {reason}", file=sys.stderr)
    return 1 if results.failed else 0


def _tls(results: Results) -> dict[str, str]:
    """Return the TLS version and cipher seen by the load generators; only a single one makes a valid comparison."""
    measured = (one for by_name in results.rounds.values() for rounds in by_name.values() for one in rounds)
    spoken = {str(one.detail["tls"]) for one in measured if one.detail.get("tls")}
    return {"TLS": " and ".join(sorted(spoken))} if spoken else {}


def _measured_clients(lines: Sequence[Line], options: Options) -> dict[str, str]:
    """Return package versions and record counts for lines that compare clients rather than servers."""
    packages = {
        CONFLUENT: ("confluent-kafka",),
        CONNECTOR: ("pyspark", "pyarrow"),
        CONNECTOR_AT_KAFKA: ("pyspark", "pyarrow"),
    }
    against = {name for line in lines for name in line.against}
    found = {
        package: version(package)
        for name in sorted(against)
        for package in packages.get(name, ())
        if find_spec(package.replace("-", "_")) is not None
    }
    if against & {CONNECTOR, CONNECTOR_AT_KAFKA}:
        found[CONNECTOR] = CONNECTOR_VERSION
    if CONNECTOR_AT_KAFKA in against:
        found = {"events of the shop": f"{options.shop_events:,}", **found}
    if against & {CONFLUENT, CONNECTOR}:
        found = {"records of 100 B": f"{options.records:,}", **found}
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
