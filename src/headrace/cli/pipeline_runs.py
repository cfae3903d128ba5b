"""Running pipelines, for `headrace pipelines`: their drivers, and the status of their queries as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.errors import ConfigError
from headrace.cli.output import format_duration
from headrace.options.table import suggestion
from headrace.pipelines.runner.control import NoResponse, ask_status
from headrace.pipelines.runner.runs import Run, Runs
from headrace.pipelines.runner.status import GONE, QueryStatus

ERROR_CHARACTERS_MAX = 250  # longest error in a table; --json shows the whole text
COLUMNS = (
    *("pipeline", "query", "state", "rows/s", "lag", "lag time"),
    *("state rows", "state size", "batches", "rows", "dead letters", "restarts", "error"),
)


def status_row(one: QueryStatus) -> list[object]:
    error = " ".join(one.error.split())
    return [
        one.pipeline,
        one.name,
        one.state,
        f"{one.rows_per_s:,.0f}",
        None if one.lag_records is None else f"{one.lag_records:,}",
        format_duration(one.lag_ms),
        f"{one.state_rows:,}",
        _size(one.state_bytes),
        one.batches,
        f"{one.rows:,}",
        None if one.dead_letters is None else f"{one.dead_letters:,}",
        one.restarts,
        error if len(error) <= ERROR_CHARACTERS_MAX else error[: ERROR_CHARACTERS_MAX - 1] + "…",
    ]


def query_statuses(runs: Runs, names: Sequence[str]) -> list[QueryStatus]:
    found: list[QueryStatus] = []
    for run in select_runs(runs, names):
        if not run.is_alive:
            killed = f"its driver (process {run.driver.pid}) was killed; run the pipeline again to resume from its checkpoint"
            found.append(QueryStatus(name="", pipeline=run.pipeline, state=GONE, error=killed))
            continue
        try:
            found += ask_status(run)
        except NoResponse as error:
            found.append(QueryStatus(name="", pipeline=run.pipeline, state="unresponsive", error=str(error)))
    return found


def select_runs(runs: Runs, names: Sequence[str]) -> list[Run]:
    running = {run.pipeline: run for run in runs.all()}
    for name in names:
        if name not in running:
            if not running:
                raise ConfigError(f"no pipeline {name} is running: {search_hint(runs)}")
            raise ConfigError(
                f"no pipeline {name} is running{suggestion(name, running)}; running: {', '.join(running)}; {search_hint(runs)}"
            )
    return [running[name] for name in names] if names else list(running.values())


def search_hint(runs: Runs) -> str:
    """Return a text that names the folder that was searched for drivers, and how to search another."""
    return (
        f"searched for drivers in {runs.runtime.absolute()}; they register in .headrace of the folder that"
        " `pipelines run` was started in, and --runtime FOLDER or HEADRACE_RUNTIME selects another"
    )


def has_stopped(runs: Runs, run: Run) -> bool:
    """Return whether the pipeline has stopped. Its driver may continue with other pipelines."""
    now = runs.find(run.pipeline)
    return now is None or now.driver != run.driver


def _size(count: int) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}"
    return f"{count} B"
