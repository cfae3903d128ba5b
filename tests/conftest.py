"""What all tests have in common."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """pytest-randomly tells its seed in a header that a quiet run does not print."""
    if terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line(f"the seed of this run: --randomly-seed={config.getoption('randomly_seed')}")
