"""`.index`: maps an offset to the position of a batch at or before it.

Entries have eight bytes: relative offset, file position. An entry holds the LAST offset of its batch and the position where
the batch begins; it is added BEFORE the batch's bytes count towards `index.interval.bytes`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from typing import ClassVar, NamedTuple

from headrace.storage.indexes.sparse_index import CorruptIndex, SparseIndex


class OffsetPosition(NamedTuple):
    offset: int
    position: int


class OffsetIndex(SparseIndex):
    ENTRY: ClassVar[Struct] = Struct(">ii")
    KEY_CODE: ClassVar[str] = "i"
    __slots__ = ()

    @property
    def is_full(self) -> bool:
        return len(self) >= self.entries_max

    def append(self, offset: int, position: int) -> None:
        relative = offset - self.base_offset
        assert not self._keys or relative > self._keys[-1], "index offsets ascend"
        self._append(relative, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the greatest entry at or before `offset`, or the beginning of the segment if there is none."""
        found = self.floor(offset - self.base_offset)
        if found is None:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(self.base_offset + found[0], found[1])

    def from_position(self, position: int) -> OffsetPosition | None:
        """Return the first entry whose batch begins at or after `position`, or None."""
        slot = bisect_left(range(len(self)), position, key=lambda number: self.entry(number)[1])
        if slot == len(self):
            return None
        relative, found = self.entry(slot)
        return OffsetPosition(self.base_offset + relative, found)

    def last(self) -> OffsetPosition:
        if not len(self):
            return OffsetPosition(self.base_offset, 0)
        relative, position = self.entry(-1)
        return OffsetPosition(self.base_offset + relative, position)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at and above `offset`."""
        self._unseal()
        self._keep(bisect_left(self._keys, offset - self.base_offset))

    def _check(self, keys: array[int], values: array[int]) -> None:
        previous_key, previous_value = -1, 0
        for key, value in zip(keys, values, strict=True):
            # The batch at position 0 has no entry: the first entry comes after `index.interval.bytes` of log.
            if key <= previous_key or value <= previous_value:
                raise CorruptIndex(f"{self.path}: entry ({key}, {value}) after ({previous_key}, {previous_value})")
            previous_key, previous_value = key, value
