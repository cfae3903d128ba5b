"""Offsets that transactions have committed and that wait for the end of theirs.

In the log they lie where they were written, so what was written later wins, whenever the transaction ends: Kafka compares the offsets of
the records then. Here whatever is committed marks the older ones that wait at its place as overtaken, which spares a million committed
offsets their position. Overtaken ones stay: until its transaction has ended a place is not stable.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from headrace.statemachine.undo import Table, UndoLog

if TYPE_CHECKING:
    from headrace.coordinators.group.offsets import CommittedOffset, Place


NEWEST = sys.maxsize  # a position behind all that is there


class PendingOffset(msgspec.Struct, frozen=True):
    position: int  # of its record in the log
    offset: CommittedOffset | None  # None: overtaken


class PendingOffsets:
    def __init__(self, undo: UndoLog) -> None:
        self._undo = undo
        # By producer id and by group; no inner table is empty.
        self.producers: Table[int, Table[tuple[str, Place], PendingOffset]] = Table(undo)
        self.groups: Table[str, Table[Place, frozenset[int]]] = Table(undo)

    def has(self, group_id: str, place: Place) -> bool:
        table = self.groups.get(group_id)
        return table is not None and place in table

    def places(self, group_id: str) -> list[Place]:
        table = self.groups.get(group_id)
        return [] if table is None else table.keys()

    def at(self, group_id: str, place: Place) -> list[CommittedOffset]:
        """Those that may still be committed."""
        found = (self.producers[producer_id][group_id, place].offset for producer_id in self._waiting(group_id, place))
        return [offset for offset in found if offset is not None]

    def put(self, producer_id: int, group_id: str, place: Place, position: int, offset: CommittedOffset) -> None:
        own = self.producers.get(producer_id)
        if own is None:
            own = self.producers[producer_id] = Table(self._undo)
        own[group_id, place] = PendingOffset(position, offset)
        waiting = self.groups.get(group_id)
        if waiting is None:
            waiting = self.groups[group_id] = Table(self._undo)
        waiting[place] = (waiting.get(place) or frozenset()) | {producer_id}

    def overtake(self, group_id: str, place: Place, position: int) -> None:
        """A record at that position is committed."""
        for producer_id in self._waiting(group_id, place):
            own = self.producers[producer_id]
            pending = own[group_id, place]
            if pending.position < position and pending.offset is not None:
                own[group_id, place] = PendingOffset(pending.position, None)

    def drop(self, group_id: str, place: Place) -> None:
        """Of all producers: a tombstone lies behind them."""
        for producer_id in self._waiting(group_id, place):
            own = self.producers[producer_id]
            del own[group_id, place]
            if not len(own):
                del self.producers[producer_id]
            self._leave(group_id, place, producer_id)

    def end(self, producer_id: int) -> list[tuple[str, Place, PendingOffset]]:
        """What it had is no longer pending, and returned."""
        own = self.producers.get(producer_id)
        if own is None:
            return []
        del self.producers[producer_id]
        ended = [(group_id, place, pending) for (group_id, place), pending in own.items()]
        for group_id, place, _ in ended:
            self._leave(group_id, place, producer_id)
        return ended

    def _waiting(self, group_id: str, place: Place) -> frozenset[int]:
        table = self.groups.get(group_id)
        return frozenset() if table is None else table.get(place) or frozenset()

    def _leave(self, group_id: str, place: Place, producer_id: int) -> None:
        table = self.groups[group_id]
        left = table[place] - {producer_id}
        if left:
            table[place] = left
            return
        del table[place]
        if not len(table):
            del self.groups[group_id]
