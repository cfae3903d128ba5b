"""What all tests have in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath

import pytest
from tests.interpreter import guard_syntax_trees
from xdist.scheduler import LoadScopeScheduling

from headrace.testing.peers import SHORT_LIVED_OPTIONS, KafkaPeer

guard_syntax_trees()
KafkaPeer.server_options = SHORT_LIVED_OPTIONS
pytest_plugins = ["tests.leaks"]

SLOW_FOLDERS = ("bench", "processes", "clients")
# Names of files, and the parameters of single tests, that say what is slow to start: a Spark for the whole run, a Kafka for each file.
_ON_SPARK = re.compile(r"_spark\.py::")
_ON_KAFKA = re.compile(r"_kafka\.py::|\[((?:older_)?kafka)-?.*\]")


def together(test: str) -> str:
    """Tests of one name run in one process of several, one after the other, or each process would start what they share."""
    if _ON_SPARK.search(test):
        return "spark"
    on_kafka = _ON_KAFKA.search(test)
    return f"{PurePath(test.split('::')[0]).stem} {on_kafka[1] or ''}" if on_kafka else test


class Scheduling(LoadScopeScheduling):
    """The marks of pytest-xdist 3.8 for this have no effect under pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest first, or one process has them left over when the others are done."""
    items.sort(key=lambda item: item.path.parent.name not in SLOW_FOLDERS)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Callable[..., None]) -> Scheduling:
    return Scheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """pytest-randomly tells its seed in a header that a quiet run does not print."""
    if terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line(f"the seed of this run: --randomly-seed={config.getoption('randomly_seed')}")
