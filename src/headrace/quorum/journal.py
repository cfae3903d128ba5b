"""The controller's journal: adapts the metadata quorum to the state-machine runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.quorum.driver import QuorumDriver
from headrace.statemachine.journal import NotLeader


class QuorumJournal:
    """The journal of the controller's state machine.

    `metadata_version` returns the level of the newest state, at which records are written.
    """

    def __init__(self, driver: QuorumDriver, metadata_version: Callable[[], int]) -> None:
        self._driver = driver
        self._metadata_version = metadata_version

    def next_offset(self) -> int:
        if not self._driver.is_leader:
            raise NotLeader("this node does not lead the metadata quorum")
        return self._driver.log.end_offset

    def append(self, records: Sequence[Any]) -> int:
        return self._driver.propose(records, self._metadata_version())

    def committed_offset(self) -> int:
        return self._driver.high_watermark - 1

    def read(self, start: int) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the committed records with their first offsets, to load a state machine."""
        for batch in self._driver.log.read(start, self._driver.high_watermark):
            yield batch.last_offset - len(batch.records) + 1, batch.records

    def on_committed(self, callback: Callable[[int], None]) -> None:
        self._driver.on_committed(lambda high_watermark: callback(high_watermark - 1))

    def on_lost(self, callback: Callable[[], None]) -> None:
        self._driver.on_lost(callback)
