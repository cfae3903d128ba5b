"""Fakes of the ports that state machines and shells use: one for each port, used by all tests, and able to fail on purpose.

`FakeJournal` stands in for `headrace.statemachine.journal.Journal`, `FakeClock` for `headrace.base.clock.Clock`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Generic, TypeVar

from headrace.statemachine.journal import NotLeader

Record = TypeVar("Record")


class FakeJournal(Generic[Record]):
    """A journal in memory.

    Records are committed by `commit`, or as soon as they are appended with `commits_on_append`. Set `refusal` to make
    appends fail; call `lose` to end the leadership. `encode` is applied to each record, so that a test can load what a
    log would hold.
    """

    def __init__(
        self,
        written: Iterable[Any] = (),
        *,
        encode: Callable[[Record], Any] | None = None,
        commits_on_append: bool = False,
    ) -> None:
        self.written: list[Any] = list(written)  # everything appended, encoded
        self.committed = len(self.written)  # the number of committed records
        self.commits_on_append = commits_on_append
        self.late = False  # for harnesses that commit after each request: hold commits back until the test commits
        self.refusal: Exception | None = None  # raised by `append`
        self.lost = False
        self._encode = encode
        self._batch_starts: list[int] = []
        self._committed_callbacks: list[Callable[[int], None]] = []
        self._lost_callbacks: list[Callable[[], None]] = []

    def next_offset(self) -> int:
        if self.lost:
            raise NotLeader("another node leads")
        return len(self.written)

    def append(self, records: Sequence[Record]) -> int:
        if self.refusal is not None:
            raise self.refusal
        self._batch_starts.append(len(self.written))
        self.written += records if self._encode is None else map(self._encode, records)
        if self.commits_on_append:
            self.commit()
        return len(self.written) - 1

    def committed_offset(self) -> int:
        return self.committed - 1

    def on_committed(self, callback: Callable[[int], None]) -> None:
        self._committed_callbacks.append(callback)

    def on_lost(self, callback: Callable[[], None]) -> None:
        self._lost_callbacks.append(callback)

    def read(self, start: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield the records from an offset on, batch by batch as they were appended, in the form that `Runtime.load` takes."""
        starts = [start, *(one for one in self._batch_starts if one > start), len(self.written)]
        for first, end in pairwise(starts):
            if records := self.written[first:end]:
                yield first, records

    def commit(self, offset: int | None = None) -> None:
        """Commit the records up to an offset, or all; do nothing if they are committed or the leadership is lost."""
        end = len(self.written) if offset is None else offset + 1
        if not self.lost and self.committed < end:
            self.committed = end
            for callback in self._committed_callbacks:
                callback(end - 1)

    def lose(self) -> None:
        """End the leadership; records that are not committed are lost."""
        self.lost = True
        del self.written[self.committed :]
        for callback in self._lost_callbacks:
            callback()


class FakeClock:
    """A wall clock that stands still until a test sets or advances it, possibly backwards.

    With an event loop it advances by the loop's time as well.
    """

    def __init__(self, now_ms: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.base_ms = now_ms
        self._loop = loop

    def now_ms(self) -> int:
        return self.base_ms + (0 if self._loop is None else int(self._loop.time() * 1000))

    def advance(self, ms: int) -> None:
        self.base_ms += ms
