"""Where a machine's records go: raft for the controller, the local leader of an internal partition for coordinators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from headrace.base.errors import HeadraceError

Record_contra = TypeVar("Record_contra", contravariant=True)


class NotLeader(HeadraceError):
    """The journal is led elsewhere; whoever asked must find the leader and ask again."""


class Journal(Protocol[Record_contra]):
    def next_offset(self) -> int:
        """The offset that the next record will get; NotLeader if this journal cannot be written here."""

    def append(self, records: Sequence[Record_contra]) -> int:
        """Appends all of them as one unit and returns the offset of the last; NotLeader if leadership is gone."""

    def committed_offset(self) -> int:
        """The last offset that can no longer be lost; -1 if none."""

    def on_committed(self, tell: Callable[[int], None]) -> None: ...

    def on_lost(self, tell: Callable[[], None]) -> None: ...
