"""The segments of a log, in the order of their base offsets; the last one is active."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from headrace.storage.segments.segment import Segment


class Segments:
    __slots__ = ("_bases", "_segments")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._segments: list[Segment] = []

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    def base_offsets(self) -> list[int]:
        return list(self._bases)

    def add(self, segment: Segment) -> None:
        """Append a segment; its base offset must be the largest."""
        assert not self._bases or self._bases[-1] < segment.base_offset, "base offsets ascend"
        self._bases.append(segment.base_offset)
        self._segments.append(segment)

    def remove(self, segment: Segment) -> None:
        slot = bisect_right(self._bases, segment.base_offset) - 1
        assert self._segments[slot] is segment, "the segment belongs to this log"
        del self._bases[slot]
        del self._segments[slot]

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace `old`, consecutive segments without the active one, with `new`."""
        slot = bisect_right(self._bases, new.base_offset) - 1
        end = slot + len(old)
        assert self._segments[slot:end] == list(old) and end < len(self._segments), (
            "the old segments belong to this log, and none is active"
        )
        self._bases[slot:end] = [new.base_offset]
        self._segments[slot:end] = [new]

    def remove_first(self, count: int) -> list[Segment]:
        removed = self._segments[:count]
        del self._bases[:count]
        del self._segments[:count]
        return removed

    def floor(self, offset: int) -> Segment | None:
        """Return the segment with the greatest base offset that is at most `offset`, or None."""
        slot = bisect_right(self._bases, offset) - 1
        return self._segments[slot] if slot >= 0 else None

    def following(self, segment: Segment) -> Segment | None:
        slot = bisect_right(self._bases, segment.base_offset)
        return self._segments[slot] if slot < len(self._segments) else None

    def from_offset(self, offset: int) -> list[Segment]:
        """Return the segment that contains `offset` and all later ones."""
        return self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]
