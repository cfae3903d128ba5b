"""A segment's batches as its indexes see them: adding entries, scanning from an entry, checking and rebuilding.

No index is trusted unchecked: an entry that does not point at its batch, or a file that contradicts the log, makes the indexes
of the segment be rebuilt from the batch headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from headrace.base.errors import CorruptData
from headrace.records.batch import NO_TIMESTAMP, BatchHeader, CorruptBatch
from headrace.records.legacy import decode_any_records
from headrace.records.record import Record
from headrace.storage.files import Files
from headrace.storage.indexes.sparse_index import CorruptIndex
from headrace.storage.indexes.time_index import TimestampOffset
from headrace.storage.log_config import LogConfig
from headrace.storage.segments.scan import scan_headers
from headrace.storage.segments.segment_files import SegmentFiles


class IndexedSegment(SegmentFiles):
    __slots__ = (
        "_bytes_since_index",
        "_index_full",
        "_index_interval_bytes",
        "_max_is_verified",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "size",
    )

    def __init__(
        self, files: Files, directory: str, base_offset: int, config: LogConfig, *, create: bool, mark: str
    ) -> None:
        super().__init__(files, directory, base_offset, config.segment_index_bytes, create=create, mark=mark)
        self.size = self.file.size()
        self.next_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset  # last offset of the first batch that contains `max_timestamp`
        self._max_is_verified = create  # False if it is from the time index and was not checked against its batch
        self._index_interval_bytes = config.index_interval_bytes
        self._bytes_since_index = 0
        self._index_full = False

    # Indexing

    def _index(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._bytes_since_index > self._index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset)
            self._bytes_since_index = 0
            self._index_full = self.offset_index.is_full or self.time_index.is_full
        self._bytes_since_index += size

    def write_pending(self) -> None:
        self.offset_index.write_pending()
        self.time_index.write_pending()

    def finish(self) -> None:
        """Add the largest timestamp to the time index, for retention and lookups, and write pending entries.

        Call this BEFORE `seal` and before closing.
        """
        self.time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset)
        self.write_pending()

    def seal(self, next_offset: int) -> None:
        """Move the indexes from memory to disk: the segment is no longer written to."""
        self.offset_index.seal()
        self.time_index.seal()
        self.next_offset = next_offset

    # Reading

    def offset_after(self, position: int) -> int:
        """Return an offset above all batches that begin before `position`, as low as the index allows.

        The index entry is checked against its batch: with an offset that is too low, a consumer would not receive all aborted
        transactions and would read aborted records.
        """
        try:
            found = self.offset_index.from_position(position)
            if found is not None:
                for _, header in scan_headers(self.file, found.position, self.size):
                    if self.base_offset <= header.base_offset <= found.offset:
                        return header.base_offset
                    break
        except (CorruptBatch, CorruptIndex):
            pass
        return self.next_offset

    def verify_max_timestamp(self) -> None:
        """Check `max_timestamp` against its batch and rebuild the indexes if it is wrong.

        Call this BEFORE retention or a lookup uses it: it may come from an index file in which a bit has flipped.
        """
        if not self._max_is_verified:
            known = TimestampOffset(self.max_timestamp, self.max_timestamp_offset)
            if self.size and self.max_timestamp != NO_TIMESTAMP and not self.matches_batch(known):
                self.rebuild_indexes()
            self._max_is_verified = True

    def matches_batch(self, entry: TimestampOffset) -> bool:
        """Return whether the timestamp of a time index entry is the largest one of the batch at its offset."""
        try:
            for _, header in self.scan_from(entry.offset):
                return header.max_timestamp == entry.timestamp
        except CorruptBatch:
            pass
        return False

    def records_at(self, position: int, header: BatchHeader) -> Iterator[Record]:
        return decode_any_records(self.file.read(position, header.size))

    def scan_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Iterate over positions and headers of the batches that end at or above `offset`."""
        return ((position, header) for position, header in self._scan_indexed(offset) if header.last_offset >= offset)

    def _scan_indexed(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        try:
            return self._scan_by_index(offset)
        except CorruptIndex:
            self.rebuild_indexes()
            return self._scan_by_index(offset)

    def _scan_by_index(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        indexed_offset, position = self.offset_index.lookup(offset)
        scan = scan_headers(self.file, position, self.size)
        if position == 0:
            return scan
        # A flipped bit in an index must not send a reader into the middle of a batch.
        try:
            first = next(scan, None)
        except CorruptBatch:
            first = None
        if first is None or not self.base_offset <= first[1].base_offset <= indexed_offset:
            raise CorruptIndex(f"{self.offset_index.path}: no batch up to offset {indexed_offset} begins at {position}")
        return chain((first,), scan)

    # Checking and rebuilding

    def _check_indexes(self) -> None:
        if self.offset_index.last().position >= max(self.size, 1):
            raise CorruptIndex(f"{self.offset_index.path} points beyond the end of its log")
        if self.size > 0 and len(self.time_index) == 0 and self._begins_with_atime_to_index():
            raise CorruptIndex(f"{self.time_index.path} lacks the entry that every clean shutdown writes")

    def _begins_with_atime_to_index(self) -> bool:
        try:
            return time_to_index(next(scan_headers(self.file, 0, self.size))[1]) != NO_TIMESTAMP
        except CorruptBatch:
            return True

    def rebuild_indexes(self) -> None:
        """Rebuild the indexes from the batch headers, without checking checksums. A sealed segment stays sealed.

        Raise CorruptData where there is no whole batch.
        """
        next_offset, was_active = self.next_offset, not self.offset_index.sealed
        self._reset_indexes()
        try:
            for position, header in scan_headers(self.file, 0, self.size):
                self._index(position, header.size, header.last_offset, time_to_index(header))
        except CorruptBatch as error:
            raise CorruptData(f"{self.file.path}: {error}") from error
        finally:
            self.finish()
            if not was_active:
                self.seal(next_offset)

    def _unseal(self) -> None:
        self.rebuild_indexes()
        self.offset_index.load()
        self.time_index.load()

    def _reset_indexes(self) -> None:
        self.offset_index.clear()
        self.time_index.clear()
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self._max_is_verified = True
        self._bytes_since_index = 0
        self._index_full = False


def time_to_index(header: BatchHeader) -> int:
    """Return the timestamp to index: none for a batch that the cleaner has emptied, whatever its header contains."""
    return header.max_timestamp if header.record_count else NO_TIMESTAMP
