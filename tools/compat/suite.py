"""What a suite is, and what came of it on both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

Outcomes = dict[str, str]  # by the name of the test


class NotHere(Exception):
    """The suite cannot be had or built on this machine; the text says what is missing."""


@dataclass(frozen=True)
class Suite:
    name: str
    version: str
    prepare: Callable[[], None]  # fetches and builds; NotHere if that cannot be done
    run: Callable[[str, str], Outcomes]  # bootstrap address, and whose it is
    settings: Mapping[str, str]  # what both servers are started with


@dataclass(frozen=True)
class Verdict:
    suite: Suite
    kafka: Outcomes
    headrace: Outcomes

    @property
    def counted(self) -> list[str]:
        """What real Kafka passes on this machine."""
        return [test for test, outcome in self.kafka.items() if outcome == PASSED]

    @property
    def lost(self) -> list[str]:
        return [test for test in self.counted if self.headrace.get(test) != PASSED]

    @property
    def passed(self) -> int:
        return len(self.counted) - len(self.lost)

    @property
    def figure(self) -> str:
        return f"{self.suite.name} {self.suite.version}: {self.passed} of {len(self.counted)} that Kafka passes"
