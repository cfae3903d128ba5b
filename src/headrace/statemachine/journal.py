"""The log of a state machine: raft for the controller, a local partition of an internal topic for coordinators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from headrace.base.errors import HeadraceError

Record_contra = TypeVar("Record_contra", contravariant=True)


class NotLeader(HeadraceError):
    """Another node leads the journal; the caller must find the leader and retry."""


class Overloaded(HeadraceError):
    """Too many replies wait for their records to be committed. Unlike NotLeader, the caller must retry at the same node."""


class Journal(Protocol[Record_contra]):
    def next_offset(self) -> int:
        """Return the offset of the next record. Raise NotLeader if this node cannot write the journal."""

    def append(self, records: Sequence[Record_contra]) -> int:
        """Append the records as one unit and return the last offset. Raise NotLeader if leadership was lost."""

    def committed_offset(self) -> int:
        """Return the last offset that can no longer be lost; -1 if there is none."""

    def on_committed(self, callback: Callable[[int], None]) -> None: ...

    def on_lost(self, callback: Callable[[], None]) -> None: ...
