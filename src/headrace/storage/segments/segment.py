"""One segment of a log: appending batches, finding them, and loading or recovering what an earlier run left.

The active segment, which is written to, has its indexes in memory; a sealed one leaves them on disk. `next_offset` is above
every offset in the segment: the last offset plus one for the active segment, the base offset of the next segment for a
sealed one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from crc32c import crc32c

from headrace.base.errors import CorruptData
from headrace.records.batch import BatchHeader, Buffer, CorruptBatch
from headrace.storage.files import Files
from headrace.storage.indexes.sparse_index import CorruptIndex
from headrace.storage.log_config import LogConfig
from headrace.storage.names import LOG_SUFFIX, SEGMENT_SUFFIXES, segment_name
from headrace.storage.segments.indexed_segment import IndexedSegment, time_to_index
from headrace.storage.segments.scan import scan_batches, scan_headers

RELATIVE_OFFSET_MAX = 2**31 - 1
TAIL_BATCHES_MAX = 512  # batches whose position is cached; above this, half of them are dropped

Visit = Callable[[BatchHeader, memoryview], None]


class Run(NamedTuple):
    """Consecutive batches that the indexes treat as one."""

    size: int
    first_last_offset: int  # last offset of the first batch
    max_timestamp: int
    max_timestamp_offset: int  # last offset of the batch with the largest timestamp


class BatchPosition(NamedTuple):
    position: int
    size: int
    base_offset: int  # base offset of the batch, or an offset in the gap before it


class Segment(IndexedSegment):
    __slots__ = (
        "_segment_bytes",
        "_tail_last_offsets",
        "_tail_positions",
        "_tail_start",
        "created_ms",
        "first_timestamp",
        "roll_after_ms",
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
        super().__init__(files, directory, base_offset, config, create=create, mark=mark)
        self.first_timestamp: int | None = None  # largest timestamp of the first batch, once known
        self.created_ms = now_ms
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

    def seal(self, next_offset: int) -> None:
        super().seal(next_offset)
        self._clear_tail()

    def _clear_tail(self) -> None:
        self._tail_last_offsets.clear()
        self._tail_positions.clear()
        self._tail_start = self.next_offset

    # Reading

    def locate(self, offset: int) -> BatchPosition | None:
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
            return BatchPosition(positions[slot], end - positions[slot], base)
        try:
            for position, header in self._scan_indexed(offset):
                if header.last_offset >= offset:
                    return BatchPosition(position, header.size, header.base_offset)
        except CorruptBatch as error:
            raise CorruptData(f"{self.file.path}, looking for offset {offset}: {error}") from error
        return None

    # Truncating, loading and recovering

    def truncate_to(self, offset: int) -> int:
        """Drop the batches that end at or above `offset`, so a batch that spans it is dropped as a whole.

        The segment becomes the active one. Return its next offset, which follows the last remaining batch.
        """
        cut = self.locate(offset)
        try:
            self.offset_index.truncate_to(offset)
            self.time_index.truncate_to(offset)
        except (CorruptIndex, FileNotFoundError):
            self._unseal()
            self.offset_index.truncate_to(offset)
            self.time_index.truncate_to(offset)
        self.aborted_index.truncate_to(offset)
        if cut is not None:
            self.file.truncate(cut.position)
            self.size = cut.position
        self.reload()
        return self.next_offset

    def reload(self) -> None:
        """Recompute the state that no file stores, by scanning from the last index entry to the end.

        Raise CorruptBatch where there is no whole batch.
        """
        self.next_offset = self.base_offset
        self.first_timestamp = None
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        self._max_is_verified = False
        self._index_full = self.offset_index.is_full or self.time_index.is_full
        position = self.offset_index.last().position
        self._bytes_since_index = 0
        for batch_position, header in scan_headers(self.file, position, self.size):
            if batch_position == 0:
                self.first_timestamp = header.max_timestamp
            if time_to_index(header) > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset
            self._bytes_since_index += header.size
            if header.base_offset < self.next_offset:
                raise CorruptBatch(
                    f"{self.file.path}: offset {header.base_offset} follows offset {self.next_offset - 1}"
                )
            self.next_offset = header.next_offset
        self._clear_tail()

    def load_active(self) -> None:
        """Load the last segment after a clean shutdown.

        Raise FileNotFoundError, CorruptIndex or CorruptBatch if it must be recovered instead.
        """
        self.offset_index.load()
        self.time_index.load()
        self._check_indexes()
        self.reload()
        if len(self.offset_index) and self.offset_index.last().offset >= self.next_offset:
            raise CorruptIndex(f"{self.offset_index.path} has offsets beyond the end of its log")

    def load_sealed(self, next_offset: int) -> None:
        """Load an older segment; the next one begins at `next_offset`.

        Raise FileNotFoundError or CorruptIndex if its indexes must be rebuilt.
        """
        self.next_offset = next_offset
        self._clear_tail()
        self.offset_index.check_sealed()
        self.time_index.check_sealed()
        self._check_indexes()
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        self._max_is_verified = False

    def recover(self, visit: Visit) -> str | None:
        """Check every batch, rebuild the indexes and truncate the file at the first bad batch.

        Return why the file was truncated, or None if all batches are good.
        """
        self._reset_indexes()
        self.aborted_index.clear()
        self.next_offset = self.base_offset
        self.first_timestamp = None
        self._clear_tail()
        good, reason = 0, None
        try:
            for position, header, batch in scan_batches(self.file, self.size):
                if header.base_offset < self.next_offset or header.last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
                    raise CorruptBatch(f"offset {header.base_offset} follows offset {self.next_offset - 1}")
                visit(header, batch)
                self._index(position, header.size, header.last_offset, time_to_index(header))
                self.next_offset = header.next_offset
                good = position + header.size
        except CorruptBatch as error:
            reason = str(error)
            self.file.truncate(good)
            self.size = good
        self._tail_start = self.next_offset
        self.finish()
        return reason
