"""The outcome of sent records: a future for one record, or one for many rows."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from headrace.base.ids import TopicPartition


class Sent(NamedTuple):
    """The position of a delivered record in its topic."""

    topic: str
    partition: int
    offset: int  # -1 with acks=0, as there is no response
    timestamp_ms: int  # the record's timestamp; the broker's time if the topic uses LogAppendTime


class SentRange(NamedTuple):
    """Rows at consecutive offsets of a partition."""

    topic: str
    partition: int
    base_offset: int  # -1 with acks=0
    rows: int


class RecordDelivery:
    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Sent]) -> None:
        self.future = future

    def delivered(self, partition: TopicPartition, base_offset: int, count: int, timestamp_ms: int) -> None:
        if not self.future.done():
            self.future.set_result(Sent(partition.topic, partition.partition, base_offset, timestamp_ms))

    def refused(self, error: Exception, count: int) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # mark it as retrieved: no warning at exit for callers that ignore deliveries


class RowsDelivery:
    """The delivery of many rows.

    Call `expect` before rows are passed on, and `all_in` after the last. Only the first error is reported.
    """

    def __init__(self, future: asyncio.Future[list[SentRange]]) -> None:
        self.future = future
        self._ranges: list[SentRange] = []
        self._waiting = 0
        self._all_in = False
        self._error: Exception | None = None

    def expect(self, count: int) -> None:
        self._waiting += count

    def all_in(self) -> None:
        self._all_in = True
        self._finish()

    def delivered(self, partition: TopicPartition, base_offset: int, count: int, timestamp_ms: int) -> None:
        self._ranges.append(SentRange(partition.topic, partition.partition, base_offset, count))
        self._waiting -= count
        self._finish()

    def refused(self, error: Exception, count: int) -> None:
        self._error = self._error or error
        self._waiting -= count
        self._finish()

    def _finish(self) -> None:
        if self._waiting or not self._all_in or self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
            self.future.exception()
        else:
            self.future.set_result(self._ranges)
