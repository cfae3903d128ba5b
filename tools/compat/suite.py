"""A test suite and its outcomes on both servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

Outcomes = dict[str, str]  # by test name


class SuiteUnavailable(Exception):
    """Raised if a suite cannot be fetched or built on this machine; the text names what is missing."""


@dataclass(frozen=True)
class Suite:
    """A test suite of another project."""

    name: str
    version: str
    prepare: Callable[[], None]  # fetches and builds; raises SuiteUnavailable if that is impossible
    run: Callable[[str, str], Outcomes]  # given the bootstrap address and the server's name
    settings: Mapping[str, str]  # settings of both servers


@dataclass(frozen=True)
class Verdict:
    """The outcomes of one suite on both servers."""

    suite: Suite
    kafka: Outcomes
    headrace: Outcomes

    @property
    def counted(self) -> list[str]:
        """Tests that real Kafka passes on this machine."""
        return [test for test, outcome in self.kafka.items() if outcome == PASSED]

    @property
    def lost(self) -> list[str]:
        """Tests that Kafka passes and Headrace does not."""
        return [test for test in self.counted if self.headrace.get(test) != PASSED]

    @property
    def passed(self) -> int:
        return len(self.counted) - len(self.lost)

    @property
    def figure(self) -> str:
        return f"{self.suite.name} {self.suite.version}: {self.passed} of {len(self.counted)} that Kafka passes"
