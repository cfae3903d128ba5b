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
from bench.load.generator import generator_name
from bench.memory import reserve_memory
from bench.paths import ROOT, WORK
from bench.plot import draw
from bench.publish import PAGE, PLOT, Run, utc_now, write_json, write_page
from bench.report import make_rows, print_table, verdict
from bench.runner import Results, Runner, available_systems
from bench.systems.clients import CONFLUENT, CONNECTOR, CONNECTOR_AT_KAFKA

ROUNDS = 3
SECONDS = 3.0
RECORDS = 10_000_000
RECORDS_MIN = 20_000
RESERVED_ROUNDS = 3  # rounds whose bytes fit into the reserved memory; large writes can use only part of it
RESERVED_BYTES_PER_SECOND = 4 * 10**9


def parse(command_line: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    known = [*chapters(), *all_lines()]
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"Run this chapter or line; without a name, run all. The names are {', '.join(known)}.",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        help="Measure each line this many times and report the medians (default: %(default)s).",
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="Apply the load for this long per round (default: %(default)g)."
    )
    parser.add_argument(
        "--records",
        type=int,
        default=RECORDS,
        help="Fill the topics that clients and Spark read with this many records of 100 bytes; topics with 1 KB "
        "records get a tenth of it, the shop's topics one event for every 25 records (default: %(default)s).",
    )
    parser.add_argument("--no-kafka", action="store_true", help="Measure only Headrace and the C ceiling.")
    parser.add_argument(
        "--publish", action="store_true", help="Write the chapter's section of docs/performance.md and its plot."
    )
    arguments = parser.parse_args(command_line)
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"no line or chapter is called {', '.join(unknown)}; there are {', '.join(known)}")
    if arguments.publish and (len(arguments.names) != 1 or arguments.names[0] not in chapters()):
        parser.error(f"--publish needs the name of one chapter: {', '.join(chapters())}")
    if arguments.rounds < 1 or arguments.seconds <= 0 or arguments.records < RECORDS_MIN:
        parser.error(f"--rounds must be at least 1, --seconds positive, and --records at least {RECORDS_MIN}")
    return arguments


def main(command_line: Sequence[str]) -> int:
    arguments = parse(command_line)
    lines = [
        line
        for chapter, lines_of_chapter in chapters().items()
        for line in lines_of_chapter
        if not arguments.names or chapter in arguments.names or line.name in arguments.names
    ]
    data = WORK / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    options = Options(
        seconds=arguments.seconds, work=data, bytes_max=machine.bytes_without_throttling(), records=arguments.records
    )
    systems, skipped = available_systems(data, with_kafka=not arguments.no_kafka)
    for name, reason in skipped.items():
        print(f"{name} is not measured: {reason}", file=sys.stderr)
    reserved = reserve_memory(
        min(RESERVED_ROUNDS * options.bytes_max, int(arguments.seconds * RESERVED_BYTES_PER_SECOND))
    )
    runner = Runner(systems, options, arguments.rounds, lambda text: print(text, file=sys.stderr, flush=True))
    runner.results.skipped = skipped
    started = utc_now()
    try:
        results = runner.run(lines)
    finally:
        reserved.close()
        shutil.rmtree(data, ignore_errors=True)
    settings = {
        "rounds": str(arguments.rounds),
        "seconds per round": f"{arguments.seconds:g}",
        "maximum bytes per round": f"{options.bytes_max / 1e9:.1f} GB",
        "load generator": generator_name(),
        **_tls(results),
        **_measured_clients(lines, options),
    }
    command = " ".join(["python -m bench", *command_line])
    run = Run(started, command, machine.facts(WORK), settings, results, make_rows(lines, results))
    print_table(run.rows, Console())
    print(verdict(run.rows))
    print(f"all rounds: {write_json(run, WORK).relative_to(ROOT)}")
    if arguments.publish and not results.failed:
        (chapter,) = arguments.names
        plot = PAGE.with_name(PLOT.format(chapter=chapter))
        draw(run.rows, plot)
        write_page(run, chapter)
        print(f"published: {PAGE.relative_to(ROOT)}, {plot.relative_to(ROOT)}")
    else:
        draw(run.rows, WORK / "performance.png")
    for name, reason in results.failed.items():
        note = ", so nothing is published" if arguments.publish else ""
        print(f"bench: {name} failed{note}: {reason}", file=sys.stderr)
    return 1 if results.failed else 0


def _tls(results: Results) -> dict[str, str]:
    """Return the TLS version and cipher seen by the load generators; only a single one makes a valid comparison."""
    measurements = (one for by_name in results.rounds.values() for rounds in by_name.values() for one in rounds)
    negotiated = {str(one.detail["tls"]) for one in measurements if one.detail.get("tls")}
    return {"TLS": " and ".join(sorted(negotiated))} if negotiated else {}


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
