"""`headrace pipelines …`: run, validate, plan; list, status and stop of what runs."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.base.errors import ConfigError, HeadraceError
from headrace.cli.groups import duration
from headrace.cli.options import Json, noun, pair
from headrace.cli.output import show_json, show_table
from headrace.pipelines.runner.control import NoAnswer, ask_status, ask_to_stop
from headrace.pipelines.runner.runs import Run, Runs
from headrace.pipelines.runner.status import GONE, QueryStatus, to_json
from headrace.pipelines.runner.supervision import State

if TYPE_CHECKING:
    from headrace.pipelines.definitions.definition import Pipeline

RUNTIME = Path(".headrace")
WATCH_EVERY_S = 2.0
STOP_S_MAX = 90.0
STOP_PAUSE_S = 0.2
ERROR_CHARACTERS_MAX = 100  # in a table; --json has all of it

app = noun()

Paths = Annotated[
    list[Path], typer.Argument(metavar="PATH…", help="files of pipelines (*.yaml, *.py), or folders of them")
]
MaybePaths = Annotated[
    list[Path] | None, typer.Argument(metavar="PATH…", help="files or folders; else only what runs is listed")
]
Brokers = Annotated[
    str | None,
    typer.Option(
        "-b", "--bootstrap-server", metavar="HOST:PORT,…", help="instead of kafka.bootstrap.servers of the files"
    ),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="instead of spark.master: local[*], spark://…, yarn, k8s://…"),
]
Once = Annotated[bool, typer.Option("--once", help="read what is there now, then end: the trigger available-now")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "-c", "--set", metavar="NAME=VALUE", help="instead of the files: kafka.…, spark.…, trigger, checkpoint"
    ),
]
Runtime = Annotated[
    Path,
    typer.Option(
        "--runtime", metavar="FOLDER", envvar="HEADRACE_RUNTIME", help="where drivers leave word of themselves"
    ),
]


@app.command()
def run(
    paths: Paths,
    bootstrap_server: Brokers = None,
    master: Master = None,
    once: Once = False,
    settings: Set = None,
    port: Annotated[int, typer.Option(help="on loopback for /metrics and /status; 0: any that is free")] = 0,
    runtime: Runtime = RUNTIME,
    quiet: Annotated[bool, typer.Option("--quiet", help="only what goes wrong")] = False,
) -> None:
    """Run pipelines in this process until Ctrl-C, SIGTERM or `stop`; bounded ones until all is read."""
    from headrace.pipelines.runner.bars import line_of, watching
    from headrace.pipelines.runner.driver import Driver

    pipelines = _load(paths, _overrides(bootstrap_server, master, once, settings))
    bounded = all(one.is_bounded(sink) for one in pipelines for sink in one.sinks.values())
    with watching(bounded) if not quiet else _nobody() as watch, _told(logging.WARNING if quiet else logging.INFO):
        statuses = Driver(pipelines, runtime=runtime, port=port, watch=watch).run()
    if bounded and not quiet:
        for one in statuses:
            print(line_of(one))
    if any(one.state == State.FAILED.value for one in statuses):
        raise typer.Exit(1)  # each was told when it was given up


@app.command()
def validate(
    paths: Paths,
    bootstrap_server: Brokers = None,
    master: Master = None,
    settings: Set = None,
    with_spark: Annotated[
        bool,
        typer.Option(
            "--spark", help="also let Spark look at them: columns, types, options (starts it: some ten seconds)"
        ),
    ] = False,
) -> None:
    """Say all that is wrong in files of pipelines, with file and line; exit code 1 if anything is."""
    pipelines = _load(paths, _overrides(bootstrap_server, master, False, settings))
    if with_spark:
        with _spark(pipelines) as spark:
            _build_all(pipelines, spark)
    for one in pipelines:
        print(f"{one.name}: {len(one.sources)} source(s), {len(one.steps)} step(s), {len(one.sinks)} sink(s): good")


@app.command()
def plan(
    paths: Paths,
    bootstrap_server: Brokers = None,
    master: Master = None,
    settings: Set = None,
    with_spark: Annotated[bool, typer.Option("--spark", help="with schemas, as Spark sees them (starts it)")] = False,
) -> None:
    """Show what a pipeline is made of: sources, steps, sinks, topics, what keeps state, and when it runs."""
    from headrace.pipelines.definitions.plan_text import plan as plan_text

    pipelines = _load(paths, _overrides(bootstrap_server, master, False, settings))
    with _spark(pipelines) if with_spark else _nobody() as spark:
        print("\n\n".join(plan_text(one, spark).rstrip() for one in pipelines))


@app.command("list")
def list_(paths: MaybePaths = None, json: Json = False, runtime: Runtime = RUNTIME) -> None:
    """Pipelines that run, and those that are defined in files or folders."""
    runs = {run.pipeline: run for run in Runs(runtime).all()}
    defined = {one.name: one for one in (_load(paths, {}) if paths else [])}
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


Names = Annotated[list[str] | None, typer.Argument(metavar="NAME…", help="of pipelines; else all that run")]


@app.command()
def status(
    names: Names = None,
    watch: Annotated[bool, typer.Option("--watch", help="again and again, until Ctrl-C")] = False,
    json: Json = False,
    runtime: Runtime = RUNTIME,
) -> None:
    """How each query stands: rows a second, how far behind, how large its state is, what went wrong."""
    while True:
        statuses = _statuses(Runs(runtime), names or [])
        if json:
            show_json([to_json(one) for one in statuses])
        else:
            if watch and sys.stdout.isatty():
                print("\033[H\033[2J", end="")
            show_table(COLUMNS, [_row(one) for one in statuses])
        if not watch:
            return
        sys.stdout.flush()
        time.sleep(WATCH_EVERY_S)


@app.command()
def stop(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME…")] = None,
    all_: Annotated[bool, typer.Option("--all", help="every pipeline that runs")] = False,
    runtime: Runtime = RUNTIME,
) -> None:
    """End pipelines where they are; the next run goes on from there. A driver without pipelines ends."""
    if not names and not all_:
        raise ConfigError("which pipeline? Give its name, or --all")
    runs = Runs(runtime)
    chosen = _chosen(runs, [] if all_ else names or [])
    for run in chosen:
        if run.is_alive:
            ask_to_stop(run)
    deadline = time.monotonic() + STOP_S_MAX
    for run in chosen:
        while run.is_alive and not _is_stopped(runs, run):
            if time.monotonic() > deadline:
                raise HeadraceError(
                    f"pipeline {run.pipeline} (process {run.driver.pid}) has not stopped within {STOP_S_MAX:g} s"
                )
            time.sleep(STOP_PAUSE_S)
        runs.forget(run)  # if it was killed
        print(f"stopped {run.pipeline}")


# --- what is shown

COLUMNS = (
    *("pipeline", "query", "state", "rows/s", "behind", "behind by"),
    *("state rows", "state size", "batches", "rows", "restarts", "error"),
)


def _row(one: QueryStatus) -> list[object]:
    error = " ".join(one.error.split())
    return [
        one.pipeline,
        one.name,
        one.state,
        f"{one.rows_per_s:,.0f}",
        None if one.lag_records is None else f"{one.lag_records:,}",
        duration(one.lag_ms),
        f"{one.state_rows:,}",
        _size(one.state_bytes),
        one.batches,
        f"{one.rows:,}",
        one.restarts,
        error if len(error) <= ERROR_CHARACTERS_MAX else error[: ERROR_CHARACTERS_MAX - 1] + "…",
    ]


def _statuses(runs: Runs, names: Sequence[str]) -> list[QueryStatus]:
    found: list[QueryStatus] = []
    for run in _chosen(runs, names):
        if not run.is_alive:
            told = f"its driver (process {run.driver.pid}) was killed; run it again: it goes on from its checkpoint"
            found.append(QueryStatus(name="", pipeline=run.pipeline, state=GONE, error=told))
            continue
        try:
            found += ask_status(run)
        except NoAnswer as error:
            found.append(QueryStatus(name="", pipeline=run.pipeline, state="silent", error=str(error)))
    return found


def _chosen(runs: Runs, names: Sequence[str]) -> list[Run]:
    there = {run.pipeline: run for run in runs.all()}
    for name in names:
        if name not in there:
            known = f"; there are {', '.join(there)}" if there else ""
            raise ConfigError(f"no pipeline {name} runs here{known}")
    return [there[name] for name in names] if names else list(there.values())


def _is_stopped(runs: Runs, run: Run) -> bool:
    """Its driver may go on with other pipelines."""
    now = runs.find(run.pipeline)
    return now is None or now.driver != run.driver


def _size(count: int) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}"
    return f"{count} B"


# --- what is read


def _overrides(brokers: str | None, master: str | None, once: bool, settings: Sequence[str] | None) -> dict[str, str]:
    found = dict(pair("--set", text) for text in settings or [])
    if brokers is not None:
        found["kafka.bootstrap.servers"] = brokers
    if master is not None:
        found["spark.master"] = master
    if once:
        found["trigger"] = "available-now"
    return found


def _load(paths: Sequence[Path], overrides: dict[str, str]) -> list[Pipeline]:
    from headrace.pipelines.definitions.checks import check
    from headrace.pipelines.definitions.loading import load

    pipelines = [one for path in paths for one in load(path, overrides)]
    for warning in check(pipelines):
        print(f"headrace: {warning}", file=sys.stderr)
    return pipelines


def _build_all(pipelines: Sequence[Pipeline], spark: Any) -> None:
    from headrace.pipelines.definitions.building import build
    from headrace.pipelines.definitions.definition import DefinitionError, Problem

    problems: list[Problem] = []
    for one in pipelines:
        try:
            build(one, spark)
        except DefinitionError as error:
            problems += error.problems
    if problems:
        raise DefinitionError(problems)


@contextmanager
def _spark(pipelines: Sequence[Pipeline]) -> Iterator[Any]:
    from headrace.pipelines.runner.engine import settings_of
    from headrace.pipelines.session import make_session

    master, conf = settings_of(pipelines)
    spark = make_session("headrace pipelines", master=master, conf={"spark.log.level": "OFF", **conf})
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _nobody() -> Iterator[None]:
    yield


class _Screen(logging.Handler):
    """Whatever standard error is at the moment: bars put themselves there."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


@contextmanager
def _told(level: int) -> Iterator[None]:
    """What drivers log, on the screen."""
    screen = _Screen()
    screen.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log = logging.getLogger("headrace")
    before = log.level, log.propagate
    log.setLevel(level)
    log.propagate = False
    log.addHandler(screen)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # Spark's end is told once, and by us
    try:
        yield
    finally:
        log.removeHandler(screen)
        log.level, log.propagate = before
