"""Settings shared by all tests: leak checks, scheduling across processes, and the seed of a failed run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath

import pytest
from testkit.kafka_peer import SHORT_LIVED_OPTIONS, KafkaPeer
from tests.interpreter import guard_syntax_trees
from xdist.scheduler import LoadScopeScheduling

guard_syntax_trees()
KafkaPeer.server_options = SHORT_LIVED_OPTIONS
pytest_plugins = ["tests.leaks"]

SLOW_FOLDERS = ("bench", "processes", "clients")
# File names and test parameters that mean a slow start: one Spark and one secured cluster for the whole run, one Kafka for each file.
_ON_CLUSTER = re.compile(r"_secured\.py::")
_ON_SPARK = re.compile(r"_spark\.py::")
_ON_KAFKA = re.compile(r"_kafka\.py::|\[((?:older_)?kafka)-?.*\]")


def together(test: str) -> str:
    """Return the test's group: a group runs in one process, or each process would start what the group shares."""
    if _ON_SPARK.search(test):
        return "spark"
    if _ON_CLUSTER.search(test):
        return "secured cluster"
    on_kafka = _ON_KAFKA.search(test)
    return f"{PurePath(test.split('::')[0]).stem} {on_kafka[1] or ''}" if on_kafka else test


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Schedules by `together`: the marks of pytest-xdist 3.8 for this have no effect under pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest tests first, or one process is still busy with them when the others are done."""
    items.sort(key=lambda item: item.path.parent.name not in SLOW_FOLDERS)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Callable[..., None]) -> Scheduling:
    return Scheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the seed after failures: pytest-randomly prints it in a header that a quiet run omits."""
    if terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line(f"the seed of this run: --randomly-seed={config.getoption('randomly_seed')}")
