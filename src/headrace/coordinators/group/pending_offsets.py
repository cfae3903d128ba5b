"""Offsets committed by transactions that have not ended yet.

The record that was written later wins, whenever its transaction ends. Kafka compares the log offsets of the records at that time. Here,
each committed offset marks older pending offsets of its topic-partition as overtaken, so that a million committed offsets need not store
their positions. Overtaken offsets are kept: a topic-partition is unstable until the transaction has ended.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from headrace.statemachine.undo import Table, UndoLog

if TYPE_CHECKING:
    from headrace.coordinators.group.offsets import CommittedOffset, PartitionKey


NEWEST = sys.maxsize  # a position after every existing record


class PendingOffset(msgspec.Struct, frozen=True):
    position: int  # log offset of its record
    offset: CommittedOffset | None  # None if overtaken by a later commit


class PendingOffsets:
    def __init__(self, undo: UndoLog) -> None:
        self._undo = undo
        # By producer id and by group; no inner table is empty.
        self.producers: Table[int, Table[tuple[str, PartitionKey], PendingOffset]] = Table(undo)
        self.groups: Table[str, Table[PartitionKey, frozenset[int]]] = Table(undo)

    def has(self, group_id: str, topic_partition: PartitionKey) -> bool:
        table = self.groups.get(group_id)
        return table is not None and topic_partition in table

    def topic_partitions(self, group_id: str) -> list[PartitionKey]:
        table = self.groups.get(group_id)
        return [] if table is None else table.keys()

    def at(self, group_id: str, topic_partition: PartitionKey) -> list[CommittedOffset]:
        """Return the pending offsets that may still be committed."""
        found = (
            self.producers[producer_id][group_id, topic_partition].offset
            for producer_id in self._waiting(group_id, topic_partition)
        )
        return [offset for offset in found if offset is not None]

    def put(
        self, producer_id: int, group_id: str, topic_partition: PartitionKey, position: int, offset: CommittedOffset
    ) -> None:
        own = self.producers.get(producer_id)
        if own is None:
            own = self.producers[producer_id] = Table(self._undo)
        own[group_id, topic_partition] = PendingOffset(position, offset)
        waiting = self.groups.get(group_id)
        if waiting is None:
            waiting = self.groups[group_id] = Table(self._undo)
        waiting[topic_partition] = (waiting.get(topic_partition) or frozenset()) | {producer_id}

    def overtake(self, group_id: str, topic_partition: PartitionKey, position: int) -> None:
        """Mark pending offsets that are older than a committed record at `position` as overtaken."""
        for producer_id in self._waiting(group_id, topic_partition):
            own = self.producers[producer_id]
            pending = own[group_id, topic_partition]
            if pending.position < position and pending.offset is not None:
                own[group_id, topic_partition] = PendingOffset(pending.position, None)

    def drop(self, group_id: str, topic_partition: PartitionKey) -> None:
        """Remove the pending offsets of all producers, because a tombstone follows them."""
        for producer_id in self._waiting(group_id, topic_partition):
            own = self.producers[producer_id]
            del own[group_id, topic_partition]
            if not len(own):
                del self.producers[producer_id]
            self._leave(group_id, topic_partition, producer_id)

    def end(self, producer_id: int) -> list[tuple[str, PartitionKey, PendingOffset]]:
        """Remove and return all pending offsets of the producer."""
        own = self.producers.get(producer_id)
        if own is None:
            return []
        del self.producers[producer_id]
        ended = [(group_id, topic_partition, pending) for (group_id, topic_partition), pending in own.items()]
        for group_id, topic_partition, _ in ended:
            self._leave(group_id, topic_partition, producer_id)
        return ended

    def _waiting(self, group_id: str, topic_partition: PartitionKey) -> frozenset[int]:
        table = self.groups.get(group_id)
        return frozenset() if table is None else table.get(topic_partition) or frozenset()

    def _leave(self, group_id: str, topic_partition: PartitionKey, producer_id: int) -> None:
        table = self.groups[group_id]
        left = table[topic_partition] - {producer_id}
        if left:
            table[topic_partition] = left
            return
        del table[topic_partition]
        if not len(table):
            del self.groups[group_id]
