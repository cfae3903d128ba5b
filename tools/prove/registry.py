"""The list of checks. A check returns its figure, raises NotRun with a reason, or fails with any other exception."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work"


class NotRun(Exception):
    """The check cannot run here; the text says what is missing."""


@dataclass(frozen=True)
class Check:
    name: str
    promise: str
    run: Callable[[], str]


CHECKS: dict[str, Check] = {}


def check(name: str, promise: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register a function as a check, in the order of definition."""

    def register(run: Callable[[], str]) -> Callable[[], str]:
        assert name not in CHECKS, f"two checks are called {name}"
        CHECKS[name] = Check(name, promise, run)
        return run

    return register


def say(text: str) -> None:
    """Print the progress of a long check."""
    print(f"    {text}", flush=True)
