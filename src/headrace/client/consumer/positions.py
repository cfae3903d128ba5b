"""The positions of a consumer in its partitions. Pure: lookups and fetches report to it.

A partition's offset is unknown at first. It is then looked up, as the group's committed offset or by a timestamp
(`reset_to`), and moves on with what is returned to the application. Fetches run ahead of that: `fetch_offset` is where
the next one begins. Every jump (a seek, a reset, a new assignment) gives a position a new `serial`, so that responses
to earlier requests are recognized as outdated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from headrace.base.errors import HeadraceError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.fetching import FetchedPartition
from headrace.client.group.membership import CommittedOffset

_serials = count()


class NotAssigned(HeadraceError):
    """The partition is not assigned to this consumer."""


class Position:
    __slots__ = (
        "end",
        "epoch",
        "failures",
        "fetch_epoch",
        "fetch_offset",
        "log_start",
        "offset",
        "paused",
        "reset_to",
        "retry_at",
        "serial",
    )

    def __init__(self) -> None:
        self.offset: int | None = None  # offset of the next record for the application
        self.epoch = -1  # leader epoch of the record before it; -1: unknown
        self.fetch_offset = -1  # offset of the next fetch; at least `offset`, if that is known
        self.fetch_epoch = -1
        self.serial = next(_serials)
        self.paused = False
        self.reset_to: int | None = None  # timestamp by which to look up the offset; None: by what is committed
        self.retry_at = 0.0  # time before which nothing is requested
        self.failures = 0  # failed requests in a row
        self.end: int | None = None  # offset up to which records could be read at the last fetch
        self.log_start: int | None = None

    def jump(self, offset: int | None, epoch: int = -1, reset_to: int | None = None) -> None:
        self.offset, self.epoch, self.reset_to = offset, epoch, reset_to
        self.fetch_offset, self.fetch_epoch = (-1 if offset is None else offset), epoch
        self.serial = next(_serials)
        self.retry_at, self.failures = 0.0, 0

    @property
    def lag(self) -> int | None:
        return None if self.offset is None or self.end is None else max(0, self.end - self.offset)


class Positions:
    """Positions in fetch order: a partition that returned data moves to the end, so that each gets its turn."""

    def __init__(self) -> None:
        self._of: dict[TopicPartition, Position] = {}

    def __contains__(self, partition: object) -> bool:
        return partition in self._of

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(list(self._of))

    def items(self) -> list[tuple[TopicPartition, Position]]:
        return list(self._of.items())

    def get(self, partition: TopicPartition) -> Position | None:
        return self._of.get(partition)

    def of(self, partition: TopicPartition) -> Position:
        found = self._of.get(partition)
        if found is None:
            raise NotAssigned(f"{partition} is not assigned to this consumer")
        return found

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions; those that stay keep their positions."""
        self._of = {partition: self._of.get(partition) or Position() for partition in partitions}

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._of.setdefault(partition, Position())

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._of.pop(partition, None)

    def had_its_turn(self, partition: TopicPartition) -> None:
        self._of[partition] = self._of.pop(partition)

    def consumed(self, partition: TopicPartition, offset: int, epoch: int) -> None:
        """Record that the application has everything before `offset`."""
        position = self.of(partition)
        assert position.offset is not None and offset >= position.offset
        position.offset = offset
        if epoch >= 0:
            position.epoch = epoch

    def fetched(self, partition: TopicPartition, next_offset: int, epoch: int) -> None:
        position = self.of(partition)
        assert next_offset >= position.fetch_offset
        position.fetch_offset, position.failures = next_offset, 0
        if epoch >= 0:
            position.fetch_epoch = epoch

    def update_log(self, fetched: FetchedPartition) -> None:
        position = self.of(fetched.partition)
        position.end, position.log_start = fetched.end_offset, fetched.log_start_offset

    def unknown(self, now: float) -> list[TopicPartition]:
        """Return the partitions whose committed offsets are to be looked up."""
        return [
            partition
            for partition, one in self._of.items()
            if one.offset is None and one.reset_to is None and one.retry_at <= now
        ]

    def resets(self, now: float) -> dict[TopicPartition, int]:
        """Return the partitions to be looked up by time, with the timestamps."""
        return {
            partition: one.reset_to
            for partition, one in self._of.items()
            if one.offset is None and one.reset_to is not None and one.retry_at <= now
        }

    def to_commit(self) -> dict[TopicPartition, CommittedOffset]:
        return {
            partition: CommittedOffset(one.offset, one.epoch)
            for partition, one in self._of.items()
            if one.offset is not None
        }
