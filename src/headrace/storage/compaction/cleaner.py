"""One run of the cleaner: maps the keys of the dirty part to offsets, then copies segments without outdated records.

A run consists of short steps, taken in a thread, so that it can be stopped or throttled between two of them. It changes nothing
that the log uses: it produces finished segments, named `.cleaned` and synced, which `swap` then puts in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from headrace.records.batch import (
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    CorruptBatch,
    check_crc,
    checksum,
    peek_size_and_magic,
    read_header,
)
from headrace.records.builder import build_from_section, empty_batch
from headrace.records.kernel import OffsetMap
from headrace.records.kernel_types import COPY, FULL, MALFORMED, OTHER, REBUILT, SiftedRun
from headrace.records.legacy import decode_any_records, read_any_header
from headrace.records.record import record_section
from headrace.storage.compaction.decisions import CleanedTransactions, CleaningPlan, LastBatches, group_segments
from headrace.storage.names import CLEANED_SUFFIX
from headrace.storage.segments.segment import Run, Segment

SLOT_BYTES = 24
SLOTS_MIN = 64
CHUNK_BYTES_MIN = 16 * 1024
MAP_BYTES_MAX = 2**31 - 1  # largest offset map of a run, as in Kafka
_CRC_AT = 17
_PEEK_BYTES = 17


class CleanerLimits(Struct, frozen=True):
    """Limits of one run."""

    map_bytes: int
    load_factor: float
    chunk_bytes: int  # bytes per read
    step_bytes: int  # bytes read and written per step


class CleanerStats(Struct):
    bytes_mapped: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_mapped: int = 0
    records_read: int = 0
    records_kept: int = 0
    keys: int = 0
    map_share: float = 0.0  # fraction of the map's slots that were used


class Replacement(Struct):
    """A finished segment and those it replaces. Its files are deleted unless `taken` is set before the next step."""

    old: Sequence[Segment]
    new: Segment
    taken: bool = False


def make_map(limits: CleanerLimits, records_max: int, secret: bytes) -> OffsetMap:
    """Return an offset map within the limits, and no larger than `records_max` offsets can fill."""
    load = min(max(limits.load_factor, 0.01), 0.99)
    slots = min(limits.map_bytes, MAP_BYTES_MAX) // SLOT_BYTES
    slots = max(SLOTS_MIN, min(slots, int(records_max / load) + 2))
    return OffsetMap(slots, max(1, min(slots - 1, int(slots * load))), secret)


class Cleaning:
    def __init__(self, plan: CleaningPlan, limits: CleanerLimits, secret: bytes, now_ms: int) -> None:
        self._plan = plan
        self._limits = limits
        self._secret = secret
        self._now_ms = now_ms
        self._horizon_ms = now_ms + plan.config.delete_retention_ms
        self.stats = CleanerStats()
        self.cleaned_to = plan.first_dirty  # advanced when all steps are done
        self._map: OffsetMap
        self._transactions: CleanedTransactions
        self._last_batches: LastBatches
        self._into: Segment
        self._pieces: list[Buffer] = []
        self._runs: list[Run] = []

    def steps(self) -> Iterator[int | Replacement]:
        """Yield after each step the bytes read and written since the last one, or a finished segment.

        Raise CorruptData if the log cannot be cleaned.
        """
        plan = self._plan
        self._map = make_map(self._limits, plan.end - plan.first_dirty, self._secret)
        self._map.latest = plan.first_dirty - 1
        yield from self._fill_map()
        self.stats.keys = self._map.entries
        self.stats.map_share = self._map.entries / self._map.slots
        self._transactions = CleanedTransactions(plan.aborted)
        self._last_batches = LastBatches(plan.producers)
        end = self._map.latest + 1
        for group in group_segments([one for one in plan.segments if one.base_offset < end], plan.config):
            yield from self._clean(group)
        self.cleaned_to = end

    # --- the first pass

    def _fill_map(self) -> Iterator[int]:
        plan = self._plan
        self._transactions = CleanedTransactions(plan.aborted)
        done = 0
        for segment in plan.segments:
            if segment.next_offset <= plan.first_dirty:
                continue
            position, read_bytes = 0, self._limits.chunk_bytes
            while position < segment.size:
                buffer = segment.file.read(position, min(read_bytes, segment.size - position))
                used, full = self._note(buffer, segment)
                self.stats.bytes_mapped += used
                done += used
                if full:
                    yield done
                    return
                read_bytes = self._limits.chunk_bytes if used else _larger(buffer, segment, position)
                position += used
                if done >= self._limits.step_bytes:
                    yield done
                    done = 0
            self._map.latest = max(self._map.latest, segment.next_offset - 1)
        yield done

    def _note(self, buffer: bytes, segment: Segment) -> tuple[int, bool]:
        """Enter a buffer's keys into the map; return how many bytes were processed and whether the map is full."""
        position = 0
        while True:
            position, records, status = self._map.note_plain(buffer, position, self._plan.first_dirty)
            self.stats.records_mapped += records
            if status == MALFORMED:
                raise CorruptBatch(f"{segment.file.path}: a batch contains records that cannot be decoded")
            if status != OTHER:
                return position, status == FULL
            batch = _whole(buffer, position)
            if batch is None:
                return position, False
            header = read_any_header(batch)
            if not self._note_batch(header, batch):
                return position, True
            position += header.size

    def _note_batch(self, header: BatchHeader, batch: memoryview) -> bool:
        """Enter a batch's keys into the map; return False if the map is full."""
        start = self._plan.first_dirty
        if header.is_control:
            self._transactions.ends(header, batch)
        elif header.magic != MAGIC:
            for record in decode_any_records(batch):
                if record.key is not None and record.offset >= start and not self._map.put(record.key, record.offset):
                    return False
        elif not self._transactions.drops(header):
            check_crc(batch, 0, header)
            section = record_section(batch, header)
            status = self._map.note_records(
                section, header.record_count, header.base_offset, header.last_offset_delta, start
            )
            if status == MALFORMED:
                raise CorruptBatch(f"the batch at offset {header.base_offset} contains records that cannot be decoded")
            if status == FULL:
                return False
        self.stats.records_mapped += header.record_count
        if header.last_offset >= start:
            self._map.latest = max(self._map.latest, header.last_offset)
        return True

    # --- the second pass

    def _clean(self, group: Sequence[Segment]) -> Iterator[int | Replacement]:
        plan = self._plan
        self._into = into = Segment.create(
            plan.log.files, plan.directory, group[0].base_offset, plan.config, self._now_ms, mark=CLEANED_SUFFIX
        )
        replacement = Replacement(group, into)
        try:
            done = 0
            for segment in group:
                for size in self._copy(segment, group[-1].next_offset):
                    done += size
                    if done >= self._limits.step_bytes:
                        yield done
                        done = 0
            into.finish()
            into.seal(group[-1].next_offset)
            # Otherwise the retention of records without timestamps would start over with each run.
            plan.log.files.set_modified_ms(into.file.path, group[-1].modified_ms())
            for file in into.files_to_sync():
                file.sync()  # BEFORE the segment may be renamed into place
            yield done
            yield replacement
        finally:
            if not replacement.taken:
                into.delete()

    def _copy(self, segment: Segment, keep_end: int) -> Iterator[int]:
        position, read_bytes = 0, self._limits.chunk_bytes
        while position < segment.size:
            buffer = segment.file.read(position, min(read_bytes, segment.size - position))
            used = self._sift(buffer, segment, keep_end)
            self.stats.bytes_read += used
            written = self._write()
            read_bytes = self._limits.chunk_bytes if used else _larger(buffer, segment, position)
            position += used
            yield used + written

    def _write(self) -> int:
        data = b"".join(self._pieces)
        if data:
            self._into.append_runs(data, self._runs)
        self._pieces, self._runs = [], []
        self.stats.bytes_written += len(data)
        return len(data)

    def _sift(self, buffer: bytes, segment: Segment, keep_end: int) -> int:
        """Add what is kept of a buffer to the pieces and return how many bytes were processed."""
        position = 0
        run_bytes = self._plan.config.index_interval_bytes
        while True:
            before = position
            position, status, runs, rebuilt, records = self._map.sift_plain(buffer, position, run_bytes, keep_end)
            self.stats.records_read += records
            for run in runs:
                self._take(run, buffer, rebuilt, keep_end)
            if status == MALFORMED:
                raise CorruptBatch(f"{segment.file.path}: a batch contains records that cannot be decoded")
            if status != OTHER:
                if runs and position > before:
                    continue  # it may have stopped at the limit of runs per call
                return position
            batch = _whole(buffer, position)
            if batch is None:
                return position
            header = read_any_header(batch)
            self.stats.records_read += header.record_count
            if header.magic != MAGIC:
                self._sift_legacy(header, batch)
            else:
                self._sift_batch(header, batch, keep_end)
            position += header.size

    def _take(self, run: SiftedRun, buffer: bytes, rebuilt: bytearray, keep_end: int) -> None:
        kind, start, end, source, first_last, _, timestamp, timestamp_offset, records = run
        if kind == COPY:
            self._pieces.append(memoryview(buffer)[start:end])
        elif kind == REBUILT:
            check_crc(buffer, source, read_header(buffer, source))
            piece = memoryview(rebuilt)[start:end]
            piece[_CRC_AT : _CRC_AT + 4] = checksum(piece, 0, end - start).to_bytes(4, "big")
            self._pieces.append(piece)
        else:
            self._keep_empty(read_header(buffer, source), keep_end)
            return
        self.stats.records_kept += records
        self._runs.append(Run(end - start, first_last, timestamp, timestamp_offset))

    def _keep(self, header: BatchHeader, piece: Buffer, records: int) -> None:
        time = header.max_timestamp if records else NO_TIMESTAMP
        self._pieces.append(piece)
        self._runs.append(Run(len(piece), header.last_offset, time, header.last_offset))
        self.stats.records_kept += records

    def _keep_empty(self, header: BatchHeader, keep_end: int) -> None:
        """Keep a batch without its records if it is the last one of its producer or of the new segment.

        The segment must not end before the next one begins.
        """
        if header.next_offset == keep_end or (header.producer_id >= 0 and self._last_batches.holds(header)):
            self._keep(*empty_batch(header), 0)

    def _sift_legacy(self, header: BatchHeader, batch: memoryview) -> None:
        """Keep a message of an old format unchanged if any record in it is kept, as old formats are never written."""
        for record in decode_any_records(batch):
            is_last = record.key is not None and record.offset >= self._map.get(record.key)
            if is_last or record.offset > self._map.latest:
                self._keep(header, batch, header.record_count)
                return

    def _sift_batch(self, header: BatchHeader, batch: memoryview, keep_end: int) -> None:
        horizon_ms = header.base_timestamp if header.attributes & DELETE_HORIZON else None
        is_past = horizon_ms is not None and horizon_ms <= self._now_ms
        is_unneeded = False  # whether this is a marker that is no longer needed
        if header.is_control:
            is_unneeded, aborted = self._transactions.ends(header, batch)
            if aborted is not None:
                self._into.aborted_index.append(aborted)
            dropped = is_unneeded and is_past
        else:
            dropped = self._transactions.drops(header)
        if dropped or header.record_count == 0:
            self._keep_empty(header, keep_end)
            return
        check_crc(batch, 0, header)
        section = record_section(batch, header)
        base = header.base_timestamp
        kept, tombstones, max_timestamp, left = self._sift_section(header, section, base, is_past)
        if kept == 0:
            self._keep_empty(header, keep_end)
            return
        attributes = header.attributes
        if horizon_ms is None and (tombstones or is_unneeded):
            base, attributes = self._horizon_ms, attributes | DELETE_HORIZON
            _, _, _, left = self._sift_section(header, section, base, is_past)
        if left is None:
            self._keep(header, batch, kept)
            return
        rebuilt = header._replace(
            attributes=attributes,
            base_timestamp=base,
            max_timestamp=header.max_timestamp if attributes & LOG_APPEND_TIME else max_timestamp,
            record_count=kept,
        )
        self._keep(rebuilt, build_from_section(rebuilt, left), kept)

    def _sift_section(
        self, header: BatchHeader, section: Buffer, base: int, drop_tombstones: bool
    ) -> tuple[int, int, int, bytearray | None]:
        status, kept, tombstones, max_timestamp, left = self._map.sift_records(
            section,
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            base,
            drop_tombstones,
            header.is_control,
        )
        if status == MALFORMED:
            raise CorruptBatch(f"the batch at offset {header.base_offset} contains records that cannot be decoded")
        return kept, tombstones, max_timestamp, left


def _whole(buffer: bytes, position: int) -> memoryview | None:
    """Return the batch or message at `position`; None if the buffer does not contain all of it."""
    if len(buffer) - position < _PEEK_BYTES:
        return None
    size, _ = peek_size_and_magic(buffer, position)
    return memoryview(buffer)[position : position + size] if 0 < size <= len(buffer) - position else None


def _larger(buffer: bytes, segment: Segment, position: int) -> int:
    """Return how many bytes to read when the buffer contained no whole batch. Raise CorruptBatch if none can follow."""
    size = peek_size_and_magic(buffer, 0)[0] if len(buffer) >= _PEEK_BYTES else 0
    if not len(buffer) < size <= segment.size - position:
        raise CorruptBatch(f"{segment.file.path}: no whole batch at position {position}")
    return size
