"""Decisions of log compaction: how dirty a log is, how far to clean it, which segments to merge, which batches to drop.

A record is kept if it is the last one of its key. Everything below `first_dirty` was cleaned before. The dirty part is read twice:
once to note the last offset of each key, and once, together with the clean part, to copy it without outdated records. The active
segment, open transactions and records younger than `min.compaction.lag.ms` are left alone (KIP-58, KIP-98, KIP-354, KIP-534).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.records.batch import BatchHeader, Buffer
from headrace.storage.append import transaction_marker
from headrace.storage.indexes.aborted_index import AbortedTransaction
from headrace.storage.log import Log
from headrace.storage.log_config import LONG_MAX, LogConfig
from headrace.storage.producer_state import NO_OFFSET, ProducerEntry
from headrace.storage.segments.segment import RELATIVE_OFFSET_MAX, Segment

GROUP_SEGMENTS_MAX = 64  # segments merged into one; their files are renamed in one turn of the event loop


class Cleanable(NamedTuple):
    """How much of a log is clean, and how much can be cleaned."""

    first_dirty: int
    end: int  # base offset of the first segment that must not be cleaned
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int  # time since `max.compaction.lag.ms` was exceeded, or 0

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        if self.cleanable_bytes == 0:
            return False
        return self.overdue_ms > 0 or self.dirty_ratio > config.min_cleanable_dirty_ratio


def first_dirty_offset(log: Log) -> int:
    """Return the offset from which on the log is dirty: all of it if the cleaner checkpoint is outside the log."""
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
    """A consistent view of the log, taken in one turn of the event loop, from which a thread can clean it."""

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
    """The last batch of each active producer, which must be kept so that the producer can continue.

    A producer that wrote nothing in its epoch has only the marker that carries the epoch.
    """

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
    """Return the last offset of a producer, or NO_OFFSET.

    The event loop may change the entry while a thread reads it. Any value is fine: a newer one only means that older batches
    are no longer needed.
    """
    try:
        return entry.batches[-1].last_offset
    except IndexError:
        return NO_OFFSET


def group_segments(segments: Sequence[Segment], config: LogConfig) -> Iterator[list[Segment]]:
    """Group adjacent segments that fit into one by log size, by the size of each index and by relative offset."""
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
    """The transactions of the batches read so far.

    Data of aborted transactions is dropped at once. A marker may be dropped when a run finds no data of its transaction, which
    is in the next run at the earliest.
    """

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._ahead = sorted(aborted, key=lambda one: -one.first_offset)  # not reached yet, next one last
        self._aborted: dict[int, AbortedTransaction] = {}  # open at the current offset, by producer id
        self._with_data: set[int] = set()  # ids of producers for whose open aborted transaction data was found
        self._committed: set[int] = set()  # ids of producers with data of a transaction that was not aborted

    def drops(self, header: BatchHeader) -> bool:
        """Return whether a data batch belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._advance(header.last_offset)
        transaction = self._aborted.get(header.producer_id)
        if transaction is not None and header.base_offset < transaction.last_offset:
            self._with_data.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def ends(self, header: BatchHeader, batch: Buffer) -> tuple[bool, AbortedTransaction | None]:
        """Return whether a control batch is unneeded, and the aborted transaction to keep in the index, if any."""
        self._advance(header.last_offset)
        if header.record_count == 0:
            return True, None  # emptied by an earlier cleaning
        marker = transaction_marker(batch)
        if marker is None:
            return False, None
        producer_id = header.producer_id
        if marker.commit:
            is_unneeded = producer_id not in self._committed
            self._committed.discard(producer_id)
            return is_unneeded, None
        transaction = self._aborted.pop(producer_id, None)
        if transaction is None or producer_id not in self._with_data:
            return True, None
        self._with_data.discard(producer_id)
        return False, transaction

    def _advance(self, offset: int) -> None:
        while self._ahead and self._ahead[-1].first_offset <= offset:
            transaction = self._ahead.pop()
            self._aborted[transaction.producer_id] = transaction
