"""`.timeindex`: no record at or before an entry's offset has a larger timestamp than the entry.

Entries have twelve bytes: timestamp, relative offset. The offset is the last one of the batch that contains the
timestamp, as Kafka 4 writes it.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import ClassVar, NamedTuple

from headrace.records.batch import NO_TIMESTAMP
from headrace.storage.indexes.sparse_index import CorruptIndex, SparseIndex


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class TimeIndex(SparseIndex):
    ENTRY: ClassVar[Struct] = Struct(">qi")
    KEY_CODE: ClassVar[str] = "q"
    __slots__ = ()

    @property
    def is_full(self) -> bool:
        # One slot is reserved for the entry that closes the segment.
        return len(self) >= self.entries_max - 1

    def append_if_later(self, timestamp: int, offset: int) -> None:
        if timestamp > (self._keys[-1] if self._keys else NO_TIMESTAMP):
            self._append(timestamp, offset - self.base_offset)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Return the greatest entry at or before `timestamp`, or (-1, base offset) if there is none.

        Raise CorruptIndex if the next entry contradicts it.
        """
        slot, entry = self._find(timestamp)
        if slot < 0:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        if slot + 1 < len(self):
            following = self.entry(slot + 1)
            if following[0] <= entry[0] or following[1] < entry[1]:
                raise CorruptIndex(f"{self.path}: entry {following} after {entry}")
        return TimestampOffset(entry[0], self.base_offset + entry[1])

    def last(self) -> TimestampOffset:
        if not len(self):
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        timestamp, relative = self.entry(-1)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at and above `offset`."""
        self._keep_values_below(offset - self.base_offset)

    def _check(self, keys: array[int], values: array[int]) -> None:
        previous_key, previous_value = NO_TIMESTAMP, -1
        for key, value in zip(keys, values, strict=True):
            # An all-zero first entry is a page that was never written, not a record of 1970 at the first offset.
            if key <= previous_key or value < previous_value or key == value == 0:
                raise CorruptIndex(f"{self.path}: entry ({key}, {value}) after ({previous_key}, {previous_value})")
            previous_key, previous_value = key, value
