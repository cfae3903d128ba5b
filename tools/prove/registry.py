"""The list of checks. A check returns its figure, raises NotRun with a reason, or fails with any other exception.

HEADRACE_ROUNDS and HEADRACE_SEED in the environment override how often a check repeats its faults and its random seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work"


class NotRun(Exception):
    """Raised by a check that cannot run on this machine; the text names what is missing."""


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


def require(*reasons: str | None) -> None:
    """Raise NotRun with the first reason that is not None."""
    for reason in reasons:
        if reason is not None:
            raise NotRun(reason)


def rounds_or(default: int) -> int:
    """Return HEADRACE_ROUNDS if it is set, otherwise the default."""
    return int(os.environ.get("HEADRACE_ROUNDS", default))


def random_seed() -> int:
    """Return HEADRACE_SEED if it is set, otherwise a new seed; a check prints it so that a failure can be repeated."""
    return int(os.environ.get("HEADRACE_SEED", random.SystemRandom().randrange(1 << 32)))


def print_progress(text: str) -> None:
    """Print a line about the progress of a long check."""
    print(f"    {text}", flush=True)
