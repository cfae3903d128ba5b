"""Lookups by time: the first record at or after a timestamp, and the first record with the largest timestamp.

Segments are skipped by their largest timestamp and searched with their time index. Neither is trusted unchecked: an entry must
agree with the batch that it points at, or the indexes of the segment are rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.records.batch import NO_TIMESTAMP, BatchHeader
from headrace.storage.indexes.sparse_index import CorruptIndex
from headrace.storage.segments.segment import Segment


class TimestampedOffset(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


def find_by_timestamp(segments: Iterable[Segment], timestamp: int, log_start: int) -> TimestampedOffset | None:
    """Return the first record whose timestamp is at least `timestamp`."""
    for segment in _visible(segments, log_start):
        if segment.max_timestamp >= timestamp:
            found = _first_record(segment, _entry_offset(segment, timestamp), timestamp, log_start)
            if found is not None:
                return found
    return None


def find_largest(segments: Iterable[Segment], log_start: int) -> TimestampedOffset | None:
    """Return the first record with the largest timestamp."""
    best: TimestampedOffset | None = None
    for segment in sorted(_visible(segments, log_start), key=lambda segment: -segment.max_timestamp):
        if segment.max_timestamp <= (NO_TIMESTAMP if best is None else best.timestamp):
            break
        found = _largest_in(segment, log_start)
        if found is not None and (best is None or found.timestamp > best.timestamp):
            best = found
    return best


def _visible(segments: Iterable[Segment], log_start: int) -> Iterator[Segment]:
    for segment in segments:
        if segment.next_offset > log_start:
            segment.verify_max_timestamp()
            yield segment


def _entry_offset(segment: Segment, timestamp: int) -> int:
    """Return an offset before which no record has that timestamp or a later one."""
    try:
        entry = segment.time_index.lookup(timestamp)
        verified = entry.timestamp == NO_TIMESTAMP or segment.matches_batch(entry)
    except CorruptIndex:
        verified = False
    if not verified:
        segment.rebuild_indexes()
        entry = segment.time_index.lookup(timestamp)
    return entry.offset


def _largest_in(segment: Segment, log_start: int) -> TimestampedOffset | None:
    found = _first_record(segment, segment.max_timestamp_offset, segment.max_timestamp, log_start)
    if found is not None or segment.base_offset >= log_start:
        return found
    # The largest timestamp is below the log start: search the visible batches whose header has a larger one than found so far.
    for position, header in segment.scan_from(log_start):
        if found is None or header.max_timestamp > found.timestamp:
            for record in segment.records_at(position, header):
                if record.offset >= log_start and record.timestamp > (
                    NO_TIMESTAMP if found is None else found.timestamp
                ):
                    found = TimestampedOffset(record.offset, record.timestamp, header.leader_epoch)
    return found


def _first_record(segment: Segment, offset: int, timestamp: int, log_start: int) -> TimestampedOffset | None:
    for position, header in segment.scan_from(max(offset, log_start)):
        if header.max_timestamp >= timestamp:
            found = _first_in(segment, position, header, timestamp, log_start)
            if found is not None:
                return found
    return None


def _first_in(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, log_start: int
) -> TimestampedOffset | None:
    for record in segment.records_at(position, header):
        if record.timestamp >= timestamp and record.offset >= log_start:
            return TimestampedOffset(record.offset, record.timestamp, header.leader_epoch)
    return None
