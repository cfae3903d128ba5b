"""Loads pipeline files with the overrides of `headrace pipelines`, checks them with Spark, and shows driver logs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from headrace.base.errors import HeadraceError
from headrace.cli.options import parse_pair
from headrace.observe.log_format import LineFormatter

if TYPE_CHECKING:
    from headrace.pipelines.definitions.definition import Pipeline

SPARK_LINES_SHOWN = 20  # number of last lines of Spark's output to show when it cannot be started


def overrides(brokers: str | None, master: str | None, once: bool, settings: Sequence[str] | None) -> dict[str, str]:
    found = dict(parse_pair("--set", text) for text in settings or [])
    if brokers is not None:
        found["kafka.bootstrap.servers"] = brokers
    if master is not None:
        found["spark.master"] = master
    if once:
        found["trigger"] = "available-now"
    return found


def load_all(paths: Sequence[Path], overrides: dict[str, str]) -> list[Pipeline]:
    from headrace.pipelines.definitions.checks import check
    from headrace.pipelines.definitions.loading import load

    pipelines = [one for path in paths for one in load(path, overrides)]
    for warning in check(pipelines):
        print(f"headrace: {warning}", file=sys.stderr)
    return pipelines


def build_all(pipelines: Sequence[Pipeline], spark: Any) -> None:
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
def start_spark(pipelines: Sequence[Pipeline]) -> Iterator[Any]:
    """Start Spark to check the pipelines; its standard error is only shown if it cannot be started."""
    from headrace.pipelines.runner.engine import NoSpark, settings_of, spark_log
    from headrace.pipelines.session import make_session

    master, conf = settings_of(pipelines)
    with TemporaryDirectory(prefix="headrace-") as folder:
        log = Path(folder) / "spark.log"
        try:
            with spark_log(log):
                spark = make_session("headrace pipelines", master=master, conf={"spark.log.level": "OFF", **conf})
        except HeadraceError:
            raise
        except Exception as error:
            output_lines = log.read_text(errors="replace").splitlines()[-SPARK_LINES_SHOWN:]
            why = "\n  ".join([f"Spark cannot be started with spark.master={master}; its last output:", *output_lines])
            raise NoSpark(why) from error
    try:
        yield spark
    finally:
        spark.stop()


class _Screen(logging.Handler):
    """Logs to the current `sys.stderr`, which progress bars replace."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


@contextmanager
def logs_on_stderr(level: int) -> Iterator[None]:
    """Show log records of drivers on standard error."""
    screen = _Screen()
    screen.setFormatter(LineFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log = logging.getLogger("headrace")
    before = log.level, log.propagate
    log.setLevel(level)
    log.propagate = False
    log.addHandler(screen)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # Headrace itself logs that Spark has exited
    try:
        yield
    finally:
        log.removeHandler(screen)
        log.level, log.propagate = before
