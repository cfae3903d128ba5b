"""One segment of a log: the `.log` file and its indexes.

The active segment, which is written to, has its indexes in memory; a sealed one leaves them on disk. `next_offset` is above
every offset in the segment: the last offset plus one for the active segment, the base offset of the next segment for a
sealed one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from crc32c import crc32c

from headrace.base.errors import CorruptData
from headrace.records.batch import NO_TIMESTAMP, BatchHeader, Buffer, CorruptBatch
from headrace.records.legacy import decode_any_records
from headrace.records.record import Record
from headrace.storage.files import File, Files
from headrace.storage.indexes.aborted_index import AbortedIndex
from headrace.storage.indexes.offset_index import OffsetIndex
from headrace.storage.indexes.sparse_index import CorruptIndex
from headrace.storage.indexes.time_index import TimeIndex, TimestampOffset
from headrace.storage.log_config import LogConfig
from headrace.storage.names import (
    ABORTED_INDEX_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    segment_name,
)
from headrace.storage.scan import scan_batches, scan_headers

RELATIVE_OFFSET_MAX = 2**31 - 1
TAIL_BATCHES_MAX = 512  # batches whose position is kept in memory; above this, half of them are dropped

Visit = Callable[[BatchHeader, memoryview], None]


class Run(NamedTuple):
    """Consecutive batches that the indexes treat as one."""

    size: int
    first_last_offset: int  # last offset of the first batch
    max_timestamp: int
    max_timestamp_offset: int  # last offset of the batch with the largest timestamp


class BatchPlace(NamedTuple):
    position: int
    size: int
    base_offset: int  # base offset of the batch, or an offset in the gap before it


class Segment:
    __slots__ = (
        "_bytes_since_index",
        "_index_full",
        "_index_interval_bytes",
        "_mark",
        "_max_is_proven",
        "_segment_bytes",
        "_tail_last_offsets",
        "_tail_positions",
        "_tail_start",
        "aborted_index",
        "base_offset",
        "created_ms",
        "directory",
        "file",
        "files",
        "first_timestamp",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "offset_index",
        "roll_after_ms",
        "size",
        "time_index",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        *,
        create: bool,
        mark: str = "",
    ) -> None:
        self.files = files
        self.directory = directory
        self.base_offset = base_offset
        self._mark = mark  # suffix of the file names until the cleaner's segment is in place
        self.file: File = files.open(self._path(LOG_SUFFIX), create=create)
        self.size = self.file.size()
        self.next_offset = base_offset
        index_bytes = config.segment_index_bytes
        self.offset_index = OffsetIndex(files, self._path(INDEX_SUFFIX), base_offset, index_bytes)
        self.time_index = TimeIndex(files, self._path(TIME_INDEX_SUFFIX), base_offset, index_bytes)
        self.aborted_index = AbortedIndex(files, self._path(ABORTED_INDEX_SUFFIX))
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset  # last offset of the first batch that contains `max_timestamp`
        self._max_is_proven = create  # False if it is from the time index and was not checked against its batch
        self.first_timestamp: int | None = None  # largest timestamp of the first batch, once known
        self.created_ms = now_ms
        self._bytes_since_index = 0
        self._index_full = False
        self._tail_last_offsets: list[int] = []
        self._tail_positions: list[int] = []
        self._tail_start = base_offset  # offset from which on the tail lists contain every batch
        self.configure(config)

    @classmethod
    def create(
        cls, files: Files, directory: str, base_offset: int, config: LogConfig, now_ms: int, *, mark: str = ""
    ) -> Segment:
        """Create an empty segment, after removing files of that name that an interrupted roll left."""
        for suffix in SEGMENT_SUFFIXES:
            files.remove(f"{directory}/{segment_name(base_offset, suffix)}{mark}")
        return cls(files, directory, base_offset, config, now_ms, create=True, mark=mark)

    @classmethod
    def open(cls, files: Files, directory: str, base_offset: int, config: LogConfig, now_ms: int) -> Segment:
        return cls(files, directory, base_offset, config, now_ms, create=False)

    def configure(self, config: LogConfig) -> None:
        self._segment_bytes = config.segment_bytes
        self._index_interval_bytes = config.index_interval_bytes
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        # Jitter keeps the partitions of a topic from rolling at the same time. A hash of the path spreads as well as a random
        # number.
        spread = crc32c(self._path(LOG_SUFFIX).encode()) % jitter_ms if jitter_ms > 0 else 0
        # Records that must be compacted by a certain age must have left the active segment by then.
        longest_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.is_compacted else config.segment_ms
        self.roll_after_ms = longest_ms - min(spread, longest_ms)

    def _path(self, suffix: str) -> str:
        return f"{self.directory}/{segment_name(self.base_offset, suffix)}{self._mark}"

    # Writing

    def should_roll(self, incoming_bytes: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        size = self.size
        if size + incoming_bytes > self._segment_bytes or last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
            return True
        if size == 0:
            return False
        if self._index_full:
            return True
        # By the records' timestamps, so that a log copied later rolls at the same offsets; by the clock if they have none.
        first_timestamp = self.first_timestamp
        if first_timestamp is None:
            first_timestamp = self.read_first_timestamp()
        waited_ms = max_timestamp - first_timestamp if first_timestamp >= 0 else now_ms - self.created_ms
        return waited_ms > self.roll_after_ms

    def read_first_timestamp(self) -> int:
        """Return the largest timestamp of the first batch. The segment must not be empty."""
        if self.first_timestamp is None:
            self.first_timestamp = next(scan_headers(self.file, 0, self.size))[1].max_timestamp
        return self.first_timestamp

    def append(self, data: Buffer, first_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Append one batch. An OSError leaves everything unchanged."""
        self._note(self.file.append(data), len(data), first_offset, last_offset, max_timestamp)

    def append_all(self, data: Buffer, headers: list[BatchHeader]) -> None:
        """Append several batches in one write. An OSError leaves everything unchanged."""
        position = self.file.append(data)
        for header in headers:
            self._note(position, header.size, header.base_offset, header.last_offset, header.max_timestamp)
            position += header.size

    def append_runs(self, data: Buffer, runs: Sequence[Run]) -> None:
        """Append batches that the cleaner keeps to its new segment, which is not read yet."""
        position = self.file.append(data)
        for run in runs:
            if run.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = run.max_timestamp, run.max_timestamp_offset
            if self._bytes_since_index > self._index_interval_bytes:
                self.offset_index.append(run.first_last_offset, position)
                self.time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset)
                self._bytes_since_index = 0
            self._bytes_since_index += run.size
            position += run.size
        self.size = position

    def _note(self, position: int, size: int, first_offset: int, last_offset: int, max_timestamp: int) -> None:
        if position == 0:
            self.first_timestamp = max_timestamp
        self._index(position, size, last_offset, max_timestamp)
        self.size = position + size
        self.next_offset = last_offset + 1
        lasts = self._tail_last_offsets
        if not lasts:
            self._tail_start = first_offset
        lasts.append(last_offset)
        self._tail_positions.append(position)
        if len(lasts) > TAIL_BATCHES_MAX:
            half = TAIL_BATCHES_MAX // 2
            self._tail_start = lasts[half - 1] + 1
            del lasts[:half]
            del self._tail_positions[:half]

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
        self.offset_index.seal()
        self.time_index.seal()
        self.next_offset = next_offset
        self._forget_tail()

    def _forget_tail(self) -> None:
        self._tail_last_offsets.clear()
        self._tail_positions.clear()
        self._tail_start = self.next_offset

    # Reading

    def locate(self, offset: int) -> BatchPlace | None:
        """Return the batch that contains `offset`, or the next one if it was removed; None if all are below."""
        if offset >= self.next_offset or self.size == 0:
            return None
        if offset >= self._tail_start:
            slot = bisect_left(self._tail_last_offsets, offset)
            positions = self._tail_positions
            if slot == len(positions):
                return None
            end = positions[slot + 1] if slot + 1 < len(positions) else self.size
            base = self._tail_last_offsets[slot - 1] + 1 if slot else self._tail_start
            return BatchPlace(positions[slot], end - positions[slot], base)
        try:
            for position, header in self._scan_indexed(offset):
                if header.last_offset >= offset:
                    return BatchPlace(position, header.size, header.base_offset)
        except CorruptBatch as error:
            raise CorruptData(f"{self.file.path}, looking for offset {offset}: {error}") from error
        return None

    def offset_behind(self, position: int) -> int:
        """Return an offset above all batches that begin before `position`, as low as the index allows.

        The index entry is checked against its batch: with an offset that is too low, a consumer would not learn of all aborted
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

    def prove_max_timestamp(self) -> None:
        """Check `max_timestamp` against its batch and rebuild the indexes if it is wrong.

        Call this BEFORE retention or a lookup uses it: it may come from an index file in which a bit has flipped.
        """
        if not self._max_is_proven:
            known = TimestampOffset(self.max_timestamp, self.max_timestamp_offset)
            if self.size and self.max_timestamp != NO_TIMESTAMP and not self.agrees(known):
                self.rebuild_indexes()
            self._max_is_proven = True

    def agrees(self, entry: TimestampOffset) -> bool:
        """Return whether the timestamp of a time index entry is the largest one of the batch at its offset."""
        try:
            for _, header in self.scan_from(entry.offset):
                return header.max_timestamp == entry.timestamp
        except CorruptBatch:
            pass
        return False

    def records_at(self, position: int, header: BatchHeader) -> Iterator[Record]:
        return decode_any_records(self.file.read(position, header.size))

    def modified_ms(self) -> int:
        return self.files.modified_ms(self.file.path)

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

    # Truncating and rebuilding

    def truncate_to(self, offset: int) -> int:
        """Drop the batches that end at or above `offset`, so a batch that spans it is dropped as a whole.

        The segment becomes the active one. Return its next offset, which follows the last remaining batch.
        """
        place = self.locate(offset)
        try:
            self.offset_index.truncate_to(offset)
            self.time_index.truncate_to(offset)
        except (CorruptIndex, FileNotFoundError):
            self._unseal()
            self.offset_index.truncate_to(offset)
            self.time_index.truncate_to(offset)
        self.aborted_index.truncate_to(offset)
        if place is not None:
            self.file.truncate(place.position)
            self.size = place.position
        self.reload()
        return self.next_offset

    def reload(self) -> None:
        """Recompute the state that no file stores, by scanning from the last index entry to the end.

        Raise CorruptBatch where there is no whole batch.
        """
        self.next_offset = self.base_offset
        self.first_timestamp = None
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        self._max_is_proven = False
        self._index_full = self.offset_index.is_full or self.time_index.is_full
        position = self.offset_index.last().position
        self._bytes_since_index = 0
        for place, header in scan_headers(self.file, position, self.size):
            if place == 0:
                self.first_timestamp = header.max_timestamp
            if _time(header) > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset
            self._bytes_since_index += header.size
            if header.base_offset < self.next_offset:
                raise CorruptBatch(f"{self.file.path}: offset {header.base_offset} comes after {self.next_offset - 1}")
            self.next_offset = header.next_offset
        self._forget_tail()

    def load_active(self) -> None:
        """Load the last segment after a clean shutdown.

        Raise FileNotFoundError, CorruptIndex or CorruptBatch if it must be recovered instead.
        """
        self.offset_index.load()
        self.time_index.load()
        self._check_indexes()
        self.reload()
        if len(self.offset_index) and self.offset_index.last().offset >= self.next_offset:
            raise CorruptIndex(f"{self.offset_index.path} knows offsets behind the end of its log")

    def load_sealed(self, next_offset: int) -> None:
        """Load an older segment; the next one begins at `next_offset`.

        Raise FileNotFoundError or CorruptIndex if its indexes must be rebuilt.
        """
        self.next_offset = next_offset
        self._forget_tail()
        self.offset_index.check_sealed()
        self.time_index.check_sealed()
        self._check_indexes()
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        self._max_is_proven = False

    def _check_indexes(self) -> None:
        if self.offset_index.last().position >= max(self.size, 1):
            raise CorruptIndex(f"{self.offset_index.path} points behind the end of its log")
        if self.size > 0 and len(self.time_index) == 0 and self._begins_with_a_time():
            raise CorruptIndex(f"{self.time_index.path} lacks the entry that every clean end writes")

    def _begins_with_a_time(self) -> bool:
        try:
            return _time(next(scan_headers(self.file, 0, self.size))[1]) != NO_TIMESTAMP
        except CorruptBatch:
            return True

    def rebuild_indexes(self) -> None:
        """Rebuild the indexes from the batch headers, without checking checksums. A sealed segment stays sealed.

        Raise CorruptData where there is no whole batch.
        """
        next_offset, was_active = self.next_offset, not self.offset_index.sealed
        self._start_over()
        try:
            for position, header in scan_headers(self.file, 0, self.size):
                self._index(position, header.size, header.last_offset, _time(header))
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

    def recover(self, visit: Visit) -> str | None:
        """Check every batch, rebuild the indexes and truncate the file at the first bad batch.

        Return why the file was truncated, or None if all batches are good.
        """
        self._start_over()
        self.aborted_index.clear()
        self.next_offset = self.base_offset
        self.first_timestamp = None
        self._forget_tail()
        good, reason = 0, None
        try:
            for position, header, batch in scan_batches(self.file, self.size):
                if header.base_offset < self.next_offset or header.last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
                    raise CorruptBatch(f"offset {header.base_offset} comes after {self.next_offset - 1}")
                visit(header, batch)
                self._index(position, header.size, header.last_offset, _time(header))
                self.next_offset = header.next_offset
                good = position + header.size
        except CorruptBatch as error:
            reason = str(error)
            self.file.truncate(good)
            self.size = good
        self._tail_start = self.next_offset
        self.finish()
        return reason

    def _start_over(self) -> None:
        self.offset_index.clear()
        self.time_index.clear()
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self._max_is_proven = True
        self._bytes_since_index = 0
        self._index_full = False

    # Syncing, closing, renaming and deleting

    def files_to_sync(self) -> list[File]:
        """Return all files of a sealed segment, or only the log of the active one.

        The indexes of the active segment are rebuilt after a crash.
        """
        if not self.offset_index.sealed:
            return [self.file]
        aborted = self.aborted_index.file_to_sync()
        found = [self.file, self.offset_index.file_to_sync(), self.time_index.file_to_sync()]
        return found if aborted is None else [*found, aborted]

    def close(self) -> None:
        for part in (self.file, self.offset_index, self.time_index, self.aborted_index):
            part.close()

    def follow(self, directory: str) -> None:
        """Update the paths after the directory was renamed."""
        self.directory = directory
        self.file.path = self._path(LOG_SUFFIX)
        self.offset_index.follow(self._path(INDEX_SUFFIX))
        self.time_index.follow(self._path(TIME_INDEX_SUFFIX))
        self.aborted_index.follow(self._path(ABORTED_INDEX_SUFFIX))

    def rename(self, mark: str) -> None:
        """Change the suffix of the file names to `mark`, the `.log` file first."""
        self._mark = mark
        self.file.move(self._path(LOG_SUFFIX))
        self.offset_index.move(self._path(INDEX_SUFFIX))
        self.time_index.move(self._path(TIME_INDEX_SUFFIX))
        self.aborted_index.move(self._path(ABORTED_INDEX_SUFFIX))

    def mark_deleted(self) -> None:
        """Rename the files so that the next start removes them; they stay readable."""
        for part in (self.file, self.offset_index, self.time_index, self.aborted_index):
            part.move(part.path + DELETED_SUFFIX)

    def delete(self) -> None:
        """Close and remove the files, marked as deleted or not.

        Any thread may call this once the segment is no longer in use.
        """
        self.close()
        for part in (self.file, self.offset_index, self.time_index, self.aborted_index):
            self.files.remove(part.path)


def _time(header: BatchHeader) -> int:
    """Return the timestamp to index: none for a batch that the cleaner has emptied, whatever its header says."""
    return header.max_timestamp if header.record_count else NO_TIMESTAMP
