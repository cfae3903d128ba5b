"""State whose uncommitted changes can be undone.

A state machine keeps its state in Tables. While a change is uncommitted, the table keeps the value that it replaced: commit
drops the oldest replaced values, rollback restores the newest first, and readers of committed state see the oldest one of a key.
Values must be immutable, or a replaced value would change with the live one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT: Final = _Absent()


class UndoLog:
    """The order of uncommitted changes to all tables of one state machine."""

    def __init__(self) -> None:
        self._changes: deque[tuple[int, Table[Any, Any], Any]] = deque()
        self._newest = -1  # position of the changes being recorded
        self.recording = False

    def __len__(self) -> int:
        return len(self._changes)

    def begin(self, position: int) -> int:
        """Record the following changes under `position`; return a mark for `rollback_to`."""
        assert position >= self._newest, f"changes at {position} after changes at {self._newest}"
        self._newest = position
        self.recording = True
        return len(self._changes)

    def end(self) -> None:
        self.recording = False

    def remember(self, table: Table[Any, Any], key: Any) -> None:
        self._changes.append((self._newest, table, key))

    def commit(self, position: int) -> None:
        changes = self._changes
        while changes and changes[0][0] <= position:
            _, table, key = changes.popleft()
            table._forget_oldest(key)

    def rollback_to(self, mark: int) -> None:
        while len(self._changes) > mark:
            _, table, key = self._changes.pop()
            table._restore_newest(key)
        self._newest = self._changes[-1][0] if self._changes else -1


class Table(Generic[K, V]):
    """A dict whose uncommitted changes can be undone, and whose committed values can be read despite them."""

    def __init__(self, undo: UndoLog) -> None:
        self._undo = undo
        self._live: dict[K, V] = {}
        self._replaced: dict[K, deque[V | _Absent]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: K) -> bool:
        return key in self._live

    def __getitem__(self, key: K) -> V:
        return self._live[key]

    def get(self, key: K) -> V | None:
        return self._live.get(key)

    def items(self) -> list[tuple[K, V]]:
        return list(self._live.items())

    def keys(self) -> list[K]:
        return list(self._live)

    def values(self) -> list[V]:
        return list(self._live.values())

    def __setitem__(self, key: K, value: V) -> None:
        if self._undo.recording:
            self._remember(key)
        self._live[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self._live:
            raise KeyError(key)
        if self._undo.recording:
            self._remember(key)
        del self._live[key]

    def clear(self) -> None:
        """Drop everything, before the table is loaded again. No change may be uncommitted."""
        assert not self._replaced, f"{len(self._replaced)} keys have uncommitted changes"
        self._live.clear()

    def committed(self, key: K) -> V | None:
        replaced = self._replaced.get(key)
        if replaced is None:
            return self._live.get(key)
        oldest = replaced[0]
        return None if isinstance(oldest, _Absent) else oldest

    def committed_items(self) -> Iterator[tuple[K, V]]:
        for key in list(self._live.keys() | self._replaced.keys()) if self._replaced else list(self._live):
            value = self.committed(key)
            if value is not None:
                yield key, value

    def committed_copy(self) -> dict[K, V]:
        """Return all committed values at one moment; nearly as fast as copying a dict."""
        copy = dict(self._live)
        for key, replaced in self._replaced.items():
            oldest = replaced[0]
            if isinstance(oldest, _Absent):
                copy.pop(key, None)
            else:
                copy[key] = oldest
        return copy

    def _remember(self, key: K) -> None:
        old = self._live.get(key, _ABSENT)
        self._replaced.setdefault(key, deque()).append(old)
        self._undo.remember(self, key)

    def _forget_oldest(self, key: K) -> None:
        replaced = self._replaced[key]
        replaced.popleft()
        if not replaced:
            del self._replaced[key]

    def _restore_newest(self, key: K) -> None:
        replaced = self._replaced[key]
        old = replaced.pop()
        if not replaced:
            del self._replaced[key]
        if isinstance(old, _Absent):
            self._live.pop(key, None)
        else:
            self._live[key] = old
