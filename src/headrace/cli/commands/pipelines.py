"""`headrace pipelines …`: run, validate and plan pipelines; list, watch and stop running ones."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import ConfigError, HeadraceError
from headrace.cli.options import Json, command_group
from headrace.cli.output import show_json, show_table
from headrace.cli.pipeline_files import build_all, load_all, logs_on_stderr, overrides, start_spark
from headrace.cli.pipeline_runs import COLUMNS, has_stopped, query_statuses, search_hint, select_runs, status_row
from headrace.pipelines.runner.control import ask_to_stop
from headrace.pipelines.runner.runs import Runs
from headrace.pipelines.runner.status import GONE, to_json
from headrace.pipelines.runner.supervision import State

RUNTIME = Path(".headrace")
WATCH_EVERY_S = 2.0
STOP_S_MAX = 90.0
STOP_PAUSE_S = 0.2

app = command_group()

Paths = Annotated[list[Path], typer.Argument(metavar="PATH", help="Pipeline files (*.yaml, *.py), or folders of them.")]
MaybePaths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="PATH", help="Pipeline files or folders to list as well. Defaults to running pipelines only."
    ),
]
Brokers = Annotated[
    str | None,
    typer.Option(
        "-b", "--bootstrap-server", metavar="HOST:PORT,…", help="Overrides kafka.bootstrap.servers of the files."
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Overrides spark.master of the files: local[*], yarn, or a URL of spark:// or k8s://.",
    ),
]
Once = Annotated[
    bool, typer.Option("--once", help="Process the records that exist now, then exit (the trigger available-now).")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        "--set",
        metavar="NAME=VALUE",
        help="Overrides an option of the files: kafka.…, spark.…, trigger, checkpoint; may be repeated.",
    ),
]
Runtime = Annotated[
    Path,
    typer.Option("--runtime", metavar="FOLDER", envvar="HEADRACE_RUNTIME", help="Folder in which drivers register."),
]


@app.command()
def run(
    paths: Paths,
    bootstrap_server: Brokers = None,
    master: Master = None,
    once: Once = False,
    settings: Set = None,
    port: Annotated[int, typer.Option(help="Port on loopback for /metrics and /status; 0 for any free port.")] = 0,
    runtime: Runtime = RUNTIME,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only warnings and errors.")] = False,
) -> None:
    """Run pipelines in this process.

    It runs until Ctrl-C, SIGTERM or `headrace pipelines stop`, or until all input of bounded pipelines is read.
    """
    from headrace.pipelines.runner.bars import line_of, watching
    from headrace.pipelines.runner.driver import Driver

    pipelines = load_all(paths, overrides(bootstrap_server, master, once, settings))
    bounded = all(one.is_bounded(sink) for one in pipelines for sink in one.sinks.values())
    with (
        watching(bounded) if not quiet else nullcontext() as watch,
        logs_on_stderr(logging.WARNING if quiet else logging.INFO),
    ):
        statuses = Driver(pipelines, runtime=runtime, port=port, watch=watch).run()
    if bounded and not quiet:
        for one in statuses:
            print(line_of(one))
    if any(one.state == State.FAILED.value for one in statuses):
        raise typer.Exit(1)  # each failure was logged when it happened


@app.command()
def validate(
    paths: Paths,
    bootstrap_server: Brokers = None,
    master: Master = None,
    settings: Set = None,
    with_spark: Annotated[
        bool,
        typer.Option(
            "--spark", help="Also check columns, types and options with Spark, which takes about ten seconds to start."
        ),
    ] = False,
) -> None:
    """Report all errors in pipeline files.

    Each error has its file and line. The exit code is 1 if there are any.
    """
    pipelines = load_all(paths, overrides(bootstrap_server, master, False, settings))
    if with_spark:
        with start_spark(pipelines) as spark:
            build_all(pipelines, spark)
    for one in pipelines:
        print(f"{one.name}: {len(one.sources)} source(s), {len(one.steps)} step(s), {len(one.sinks)} sink(s): valid")


@app.command()
def plan(
    paths: Paths,
    bootstrap_server: Brokers = None,
    master: Master = None,
    settings: Set = None,
    with_spark: Annotated[
        bool, typer.Option("--spark", help="Include schemas from Spark, which takes about ten seconds to start.")
    ] = False,
) -> None:
    """Show the parts of pipelines.

    These are sources, steps, sinks, topics, stateful steps and triggers.
    """
    from headrace.pipelines.definitions.plan_text import plan as plan_text

    pipelines = load_all(paths, overrides(bootstrap_server, master, False, settings))
    with start_spark(pipelines) if with_spark else nullcontext() as spark:
        print("\n\n".join(plan_text(one, spark).rstrip() for one in pipelines))


@app.command("list")
def list_(paths: MaybePaths = None, json: Json = False, runtime: Runtime = RUNTIME) -> None:
    """List running pipelines, and those in files or folders."""
    known = Runs(runtime)
    runs = {run.pipeline: run for run in known.all()}
    defined = {one.name: one for one in (load_all(paths, {}) if paths else [])}
    found = []
    for name in sorted({*runs, *defined}):
        one, running = defined.get(name), runs.get(name)
        found.append(
            {
                "pipeline": name,
                "file": str(one.origin) if one is not None else running.origin if running is not None else "",
                "sinks": list(one.sinks) if one is not None else None,
                "state": ("running" if running.is_alive else GONE) if running is not None else "",
                "process": running.driver.pid if running is not None and running.is_alive else None,
            }
        )
    if json:
        show_json(found)
        return
    rows = [[", ".join(cell) if isinstance(cell, list) else cell for cell in one.values()] for one in found]
    show_table(("pipeline", "file", "sinks", "state", "process"), rows)
    if not runs:
        _report_none_running(known)


Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="Pipelines. Defaults to all running pipelines.")
]


@app.command()
def status(
    names: Names = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    json: Json = False,
    runtime: Runtime = RUNTIME,
) -> None:
    """Show the status of running queries.

    This includes rows per second, lag, the size of the state, and errors.
    """
    runs = Runs(runtime)
    while True:
        statuses = query_statuses(runs, names or [])
        if json:
            show_json([to_json(one) for one in statuses])
        else:
            if watch and sys.stdout.isatty():
                print("\033[H\033[2J", end="")
            show_table(COLUMNS, [status_row(one) for one in statuses])
            if not statuses:
                _report_none_running(runs)
        if not watch:
            return
        sys.stdout.flush()
        time.sleep(WATCH_EVERY_S)


@app.command()
def stop(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Pipelines to stop.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Stop all running pipelines.")] = False,
    runtime: Runtime = RUNTIME,
) -> None:
    """Stop pipelines.

    The next run resumes from their checkpoints. A driver without pipelines exits.
    """
    if not names and not all_:
        raise ConfigError("name the pipelines to stop, or give --all")
    runs = Runs(runtime)
    requested = select_runs(runs, [] if all_ else names or [])
    if not requested:
        _report_none_running(runs)
    for run in requested:
        if run.is_alive:
            ask_to_stop(run)
    deadline = time.monotonic() + STOP_S_MAX
    for run in requested:
        while run.is_alive and not has_stopped(runs, run):
            if time.monotonic() > deadline:
                raise HeadraceError(
                    f"pipeline {run.pipeline} (process {run.driver.pid}) did not stop within {STOP_S_MAX:g} s"
                )
            time.sleep(STOP_PAUSE_S)
        runs.forget(run)  # removes the entry of a driver that was killed
        print(f"stopped {run.pipeline}")


def _report_none_running(runs: Runs) -> None:
    print(f"headrace: no pipeline is running: {search_hint(runs)}", file=sys.stderr)
