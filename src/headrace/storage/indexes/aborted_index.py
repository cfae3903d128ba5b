"""`.txnindex`: the aborted transactions whose markers are in the segment, for read_committed consumers.

Entries have 34 bytes and are in the order of the markers. The file exists only if a transaction was aborted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.errors import CorruptData
from headrace.options.table import LONG_MAX
from headrace.storage.file_range import FileRange
from headrace.storage.files import File, Files
from headrace.storage.indexes.index_file import IndexFile
from headrace.storage.producer_state import CompletedTransaction

if TYPE_CHECKING:
    from headrace.storage.segments.segment import Segment

ENTRY = Struct(">hqqqq")
ENTRY_VERSION = 0
ABORTED_INDEX_BYTES_MAX = 1 << 30
_LAST_OFFSET = attrgetter("last_offset")


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # offset of the marker
    last_stable_offset: int  # last stable offset when the marker was written


class AbortedIndex(IndexFile):
    __slots__ = ("_entries",)

    def __init__(self, files: Files, path: str) -> None:
        super().__init__(files, path)
        self._entries: list[AbortedTransaction] | None = None  # read on first use

    def entries(self) -> list[AbortedTransaction]:
        if self._entries is None:
            self._entries = self._load()
        return self._entries

    def append(self, transaction: AbortedTransaction) -> None:
        entries = self.entries()
        assert not entries or entries[-1].last_offset < transaction.last_offset, "markers ascend"
        self._open_file(create=True).append(ENTRY.pack(ENTRY_VERSION, *transaction))
        entries.append(transaction)

    def note(self, completed: CompletedTransaction | None) -> None:
        """Add the transaction that a marker has completed or is about to complete, if it was aborted."""
        if completed is not None and completed.aborted:
            self.append(
                AbortedTransaction(
                    completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
                )
            )

    def collect(self, start_offset: int, upper_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the transactions that overlap the range, and True if no later segment can contain another one."""
        found, entries = [], self.entries()
        first = bisect_left(entries, start_offset, key=_LAST_OFFSET)
        for transaction in islice(entries, first, None) if first else entries:
            if transaction.first_offset < upper_offset:
                found.append(transaction)
            if transaction.last_stable_offset >= upper_offset:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions whose markers are at or above `offset`."""
        entries = self.entries()
        kept = [transaction for transaction in entries if transaction.last_offset < offset]
        if len(kept) != len(entries):
            self._open_file(create=True).truncate(len(kept) * ENTRY.size)
            self._entries = kept

    def clear(self) -> None:
        self.close()
        self._files.remove(self.path)
        self._entries = []

    def file_to_sync(self) -> File | None:
        return self._open_file(create=True) if self.entries() else None

    def _load(self) -> list[AbortedTransaction]:
        if not self._files.exists(self.path):
            return []
        file = self._open_file(create=True)
        size = file.size()
        if size % ENTRY.size or size > ABORTED_INDEX_BYTES_MAX:
            raise CorruptData(
                f"{self.path} has {size} bytes, not a multiple of {ENTRY.size} up to {ABORTED_INDEX_BYTES_MAX}"
            )
        entries: list[AbortedTransaction] = []
        previous = -1
        for version, *fields in ENTRY.iter_unpack(file.read(0, size)):
            transaction = AbortedTransaction(*fields)
            if version != ENTRY_VERSION or not 0 <= transaction.first_offset <= transaction.last_offset:
                raise CorruptData(f"{self.path}: entry {len(entries)} is version {version} and {transaction}")
            if transaction.last_offset <= previous:
                raise CorruptData(f"{self.path}: the marker of entry {len(entries)} is not after {previous}")
            previous = transaction.last_offset
            entries.append(transaction)
        return entries


def collect_aborted(
    segments: Sequence[Segment], start_offset: int, upper_offset: int, read: FileRange | None
) -> list[AbortedTransaction]:
    """Return the aborted transactions that overlap the range from `start_offset` up to `upper_offset`.

    `segments` begins with the one that contains `start_offset` and includes all later ones: a transaction that was aborted
    late has its marker in a later segment. `read` lowers the upper bound to about the end of that range.
    """
    found: list[AbortedTransaction] = []
    bound: int | None = None
    for segment in segments:
        if not segment.aborted_index.entries():
            continue
        if bound is None:  # computed lazily: few logs have aborted transactions
            bound = min(upper_offset, _end(segments, read))
        more, complete = segment.aborted_index.collect(start_offset, bound)
        found += more
        if complete:
            break
    return found


def _end(segments: Sequence[Segment], read: FileRange | None) -> int:
    if read is not None:
        for segment in segments:
            if segment.file is read.file:
                return segment.offset_after(read.position + read.size)
    return LONG_MAX
