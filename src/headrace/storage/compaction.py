"""What a compacted log may lose: how dirty it is, how far it may be cleaned, which segments become one, what is left of a batch.

A record stays if it is the last of its key. Everything below `first_dirty` was cleaned before; what is dirty is read twice, once to note
the last offset of each key and once, with all that lies before it, to be copied without what is out of date. The active segment, undecided
transactions and what is younger than `min.compaction.lag.ms` are not touched (KIP-58, KIP-98, KIP-354, KIP-534).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.records.batch import BatchHeader, Buffer
from headrace.storage.aborted_index import AbortedTransaction
from headrace.storage.append import transaction_marker
from headrace.storage.log import Log
from headrace.storage.log_config import LONG_MAX, LogConfig
from headrace.storage.producer_state import NO_OFFSET, ProducerEntry
from headrace.storage.segment import RELATIVE_OFFSET_MAX, Segment

GROUP_SEGMENTS_MAX = 64  # renamed in one turn of the event loop


class Cleanable(NamedTuple):
    """How much of a log is clean, and how much could be."""

    first_dirty: int
    end: int  # the base offset of the first segment that must stay as it is
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int  # by `max.compaction.lag.ms`

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        if self.cleanable_bytes == 0:
            return False
        return self.overdue_ms > 0 or self.dirty_ratio > config.min_cleanable_dirty_ratio


def first_dirty_offset(log: Log) -> int:
    """A checkpoint that lies outside the log is of another time: all of it counts as dirty then."""
    return log.cleaned_to if log.log_start <= log.cleaned_to <= log.log_end else log.log_start


def cleanable(log: Log, last_stable_offset: int, now_ms: int) -> Cleanable:
    first_dirty = first_dirty_offset(log)
    sealed = [segment for segment in log.segments if segment is not log.segments.active]
    dirty = [segment for segment in sealed if segment.next_offset > first_dirty]
    uncleanable = min(last_stable_offset, log.segments.active.base_offset)
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        young = (segment.base_offset for segment in dirty if segment.max_timestamp > now_ms - lag_ms)
        uncleanable = min(uncleanable, next(young, uncleanable))
    holder = log.segments.floor(max(first_dirty, uncleanable))
    end = log.log_start if holder is None else holder.base_offset
    return Cleanable(
        first_dirty,
        end,
        sum(segment.size for segment in sealed if segment.base_offset < first_dirty and segment.base_offset < end),
        sum(segment.size for segment in dirty if segment.base_offset < end),
        _overdue_ms([segment for segment in dirty if segment.base_offset < end], log.config, now_ms),
    )


def _overdue_ms(dirty: Sequence[Segment], config: LogConfig, now_ms: int) -> int:
    if config.max_compaction_lag_ms >= LONG_MAX:
        return 0
    times = [time for segment in dirty if segment.size and (time := segment.read_first_timestamp()) > 0]
    return max(0, now_ms - config.max_compaction_lag_ms - min(times)) if times else 0


class CleaningPlan(NamedTuple):
    """All that a run of cleaning needs to know of the log, taken in one turn: from here on a thread may work by itself."""

    log: Log
    generation: int
    directory: str
    config: LogConfig
    segments: tuple[Segment, ...]
    first_dirty: int
    end: int
    aborted: list[AbortedTransaction]
    producers: list[ProducerEntry]


def plan_cleaning(log: Log, found: Cleanable) -> CleaningPlan:
    segments = tuple(segment for segment in log.segments if segment.base_offset < found.end)
    return CleaningPlan(
        log,
        log.generation,
        log.directory,
        log.config,
        segments,
        found.first_dirty,
        found.end,
        log.aborted_transactions(segments[0].base_offset, found.end) if segments else [],
        list(log.producers.entries()),
    )


class LastBatches:
    """Of the active producers: what must not be lost, or they could not go on. A producer that wrote nothing under its epoch has only a
    marker that says which epoch that is."""

    def __init__(self, producers: Sequence[ProducerEntry]) -> None:
        self._last = {entry.producer_id: (entry.epoch, _last_offset(entry)) for entry in producers}

    def holds(self, header: BatchHeader) -> bool:
        found = self._last.get(header.producer_id)
        if found is None:
            return False
        epoch, last_offset = found
        if last_offset >= 0:
            return header.last_offset == last_offset
        return header.is_control and header.producer_epoch == epoch


def _last_offset(entry: ProducerEntry) -> int:
    """The entry lives on while a thread reads it: whatever it has just become, older batches need it no more."""
    try:
        return entry.batches[-1].last_offset
    except IndexError:
        return NO_OFFSET


def group_segments(segments: Sequence[Segment], config: LogConfig) -> Iterator[list[Segment]]:
    """Neighbours that fit into one segment: by size, by the size of each index, by what a relative offset can say."""
    group: list[Segment] = []
    log_bytes = index_bytes = time_index_bytes = 0
    for segment in segments:
        sizes = (
            segment.size,
            len(segment.offset_index) * segment.offset_index.ENTRY.size,
            len(segment.time_index) * segment.time_index.ENTRY.size,
        )
        if group and (
            log_bytes + sizes[0] > config.segment_bytes
            or index_bytes + sizes[1] > config.segment_index_bytes
            or time_index_bytes + sizes[2] > config.segment_index_bytes
            or segment.next_offset - 1 - group[0].base_offset > RELATIVE_OFFSET_MAX
            or len(group) == GROUP_SEGMENTS_MAX
        ):
            yield group
            group, log_bytes, index_bytes, time_index_bytes = [], 0, 0, 0
        group.append(segment)
        log_bytes += sizes[0]
        index_bytes += sizes[1]
        time_index_bytes += sizes[2]
    if group:
        yield group


class CleanedTransactions:
    """Which transactions the batches read so far belong to. Data of aborted ones goes at once; a marker may go when none of its data
    was met, which is in the next cleaning at the earliest."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._ahead = sorted(aborted, key=lambda one: -one.first_offset)  # the next one is the last
        self._aborted: dict[int, AbortedTransaction] = {}  # open at this place, by producer
        self._met: set[int] = set()  # producers of aborted ones of which data was met
        self._committed: set[int] = set()  # producers with data of a transaction that was committed

    def drops(self, header: BatchHeader) -> bool:
        """A batch of data: whether its transaction was aborted."""
        if not header.is_transactional:
            return False
        self._advance(header.last_offset)
        transaction = self._aborted.get(header.producer_id)
        if transaction is not None and header.base_offset < transaction.last_offset:
            self._met.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def ends(self, header: BatchHeader, batch: Buffer) -> tuple[bool, AbortedTransaction | None]:
        """A control batch: whether nothing is left that needs it; and the aborted transaction that a reader still has to hear of."""
        self._advance(header.last_offset)
        if header.record_count == 0:
            return True, None  # emptied by an earlier cleaning
        marker = transaction_marker(batch)
        if marker is None:
            return False, None
        producer_id = header.producer_id
        if marker.commit:
            is_free = producer_id not in self._committed
            self._committed.discard(producer_id)
            return is_free, None
        transaction = self._aborted.pop(producer_id, None)
        if transaction is None or producer_id not in self._met:
            return True, None
        self._met.discard(producer_id)
        return False, transaction

    def _advance(self, offset: int) -> None:
        while self._ahead and self._ahead[-1].first_offset <= offset:
            transaction = self._ahead.pop()
            self._aborted[transaction.producer_id] = transaction
