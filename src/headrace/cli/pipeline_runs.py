"""Running pipelines, for `headrace pipelines`: their drivers, and the status of their queries as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.errors import ConfigError
from headrace.cli.output import duration
from headrace.options.table import suggestion
from headrace.pipelines.runner.control import NoResponse, ask_status
from headrace.pipelines.runner.runs import Run, Runs
from headrace.pipelines.runner.status import GONE, QueryStatus

ERROR_CHARACTERS_MAX = 250  # in a table; --json shows the whole text
COLUMNS = (
    *("pipeline", "query", "state", "rows/s", "behind", "behind by"),
    *("state rows", "state size", "batches", "rows", "dead letters", "restarts", "error"),
)


def row_of(one: QueryStatus) -> list[object]:
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
        None if one.dead_letters is None else f"{one.dead_letters:,}",
        one.restarts,
        error if len(error) <= ERROR_CHARACTERS_MAX else error[: ERROR_CHARACTERS_MAX - 1] + "…",
    ]


def statuses_of(runs: Runs, names: Sequence[str]) -> list[QueryStatus]:
    found: list[QueryStatus] = []
    for run in chosen(runs, names):
        if not run.is_alive:
            spark_message = (
                f"its driver (process {run.driver.pid}) was killed; run it again: it resumes from its checkpoint"
            )
            found.append(QueryStatus(name="", pipeline=run.pipeline, state=GONE, error=spark_message))
            continue
        try:
            found += ask_status(run)
        except NoResponse as error:
            found.append(QueryStatus(name="", pipeline=run.pipeline, state="silent", error=str(error)))
    return found


def chosen(runs: Runs, names: Sequence[str]) -> list[Run]:
    there = {run.pipeline: run for run in runs.all()}
    for name in names:
        if name not in there:
            if not there:
                raise ConfigError(f"no pipeline {name} runs here: {where_looked(runs)}")
            raise ConfigError(
                f"no pipeline {name} runs here{suggestion(name, there)}; there are {', '.join(there)}; {where_looked(runs)}"
            )
    return [there[name] for name in names] if names else list(there.values())


def where_looked(runs: Runs) -> str:
    """Return a text that says where drivers were looked for, and how to look elsewhere."""
    return (
        f"drivers are looked for in {runs.runtime.absolute()}; they leave word in .headrace of the folder that"
        " `pipelines run` is started in, and --runtime FOLDER or HEADRACE_RUNTIME names another"
    )


def is_stopped(runs: Runs, run: Run) -> bool:
    """Return whether the pipeline has stopped. Its driver may continue with other pipelines."""
    now = runs.find(run.pipeline)
    return now is None or now.driver != run.driver


def _size(count: int) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}"
    return f"{count} B"
