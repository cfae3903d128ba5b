"""Opening a log directory: removes leftovers, loads the segments, checks what a crash may have torn, rebuilds indexes.

After a clean shutdown nothing is scanned. Otherwise every batch of the segments from the recovery point on is checked. The
first bad batch and everything after it are cut off, as in Kafka: bytes that were never synced were never promised. The report
lists what was lost.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from headrace.base.errors import CorruptData
from headrace.records.batch import BatchHeader
from headrace.storage.append import replay_batch
from headrace.storage.checkpoints import (
    CHECKPOINT_BYTES_MAX,
    LEADER_EPOCH_CHECKPOINT,
    CorruptCheckpoint,
    parse_leader_epochs,
    read_text,
)
from headrace.storage.files import Files
from headrace.storage.indexes.sparse_index import CorruptIndex
from headrace.storage.leader_epochs import LeaderEpochs
from headrace.storage.leftovers import remove_leftovers
from headrace.storage.log_config import LogConfig
from headrace.storage.names import LOG_SUFFIX, offset_of
from headrace.storage.producer_snapshots import ProducerSnapshots
from headrace.storage.producer_state import ProducerState
from headrace.storage.segments.segment import Segment
from headrace.storage.segments.segment_list import Segments


class Cut(NamedTuple):
    """Bytes that were cut off the end of a segment."""

    path: str
    position: int
    bytes_lost: int
    next_offset: int
    reason: str


class RecoveryReport(Struct):
    clean: bool
    segments_checked: int = 0
    removed_files: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)  # what was rebuilt, and why
    cuts: list[Cut] = field(default_factory=list)
    dropped_segments: list[tuple[str, int]] = field(default_factory=list)  # paths and sizes in bytes
    damage: list[str] = field(default_factory=list)  # what could be neither read nor repaired and was left unchanged

    @property
    def bytes_lost(self) -> int:
        return sum(cut.bytes_lost for cut in self.cuts) + sum(size for _, size in self.dropped_segments)

    def messages(self) -> list[str]:
        """Return one line for the node's log for each thing an operator should know."""
        lines = [
            f"{cut.path}: cut {cut.bytes_lost} bytes at {cut.position}, the log ends at offset {cut.next_offset}: {cut.reason}"
            for cut in self.cuts
        ]
        lines += [
            f"{path}: dropped with {size} bytes, because the segment before it was cut"
            for path, size in self.dropped_segments
        ]
        lines += [f"rebuilt {text}" for text in self.rebuilt]
        return lines + [f"damaged {text}" for text in self.damage]


class LoadedLog(NamedTuple):
    segments: Segments
    epochs: LeaderEpochs
    producers: ProducerState
    snapshots: ProducerSnapshots
    log_start: int
    recovery_point: int


class Loader:
    """Loads one log, once: `load` opens an existing directory, `create` fills a new one."""

    def __init__(self, files: Files, directory: str, config: LogConfig, now_ms: int, *, clean: bool) -> None:
        self._files = files
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._clean = clean
        self.report = RecoveryReport(clean)
        self._segments = Segments()
        self._epochs = LeaderEpochs()
        self._producers = ProducerState()
        self._recovering: Segment

    def load(self, recovery_point: int, log_start: int) -> LoadedLog:
        remove_leftovers(self._files, self._directory, self.report.removed_files)
        snapshots = ProducerSnapshots(self._files, self._directory)
        epochs_lost = self._load_epochs()
        first_unchecked = self._open_segments(recovery_point)
        if first_unchecked is not None:
            self._recover(first_unchecked, snapshots, log_start)
        if len(self._segments) and self._segments.active.next_offset < log_start:
            self._drop_all(snapshots, log_start)
        if not len(self._segments):
            self._segments.add(Segment.create(self._files, self._directory, log_start, self._config, self._now_ms))
        log_start = max(log_start, self._segments.first.base_offset)
        log_end = self._segments.active.next_offset
        if epochs_lost:
            self._rebuild_epochs()
        self._epochs.truncate_from_end(log_end)
        self._epochs.truncate_from_start(log_start)
        snapshots.remove_unneeded(self._segments.base_offsets())
        if first_unchecked is None:
            try:
                reload_producers(
                    self._producers, snapshots, self._segments, log_start, log_end, self._config, self._now_ms
                )
            except CorruptData as error:
                self.report.damage.append(f"producer state of {self._directory}: {error}")
        else:
            snapshots.keep_range(log_start, log_end)
        self._producers.end_offset = log_end
        # A log that was cut has not been synced; only a clean shutdown proves that everything is on disk.
        is_synced = self._clean and first_unchecked is None
        recovery_point = max(log_start, log_end if is_synced else min(recovery_point, log_end))
        return LoadedLog(self._segments, self._epochs, self._producers, snapshots, log_start, recovery_point)

    def create(self, log_start: int) -> LoadedLog:
        """Create the log of a new, empty directory."""
        self._segments.add(Segment(self._files, self._directory, log_start, self._config, self._now_ms, create=True))
        snapshots = ProducerSnapshots(self._files, self._directory, empty=True)
        return LoadedLog(self._segments, self._epochs, self._producers, snapshots, log_start, log_start)

    def _load_epochs(self) -> bool:
        path = f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}"
        try:
            text = read_text(self._files, path, CHECKPOINT_BYTES_MAX)
            self._epochs = LeaderEpochs(parse_leader_epochs(path, text) if text else ())
        except CorruptCheckpoint as error:
            self.report.rebuilt.append(str(error))
            return True
        return False

    def _rebuild_epochs(self) -> None:
        self._epochs = LeaderEpochs()
        for segment in self._segments:
            try:
                for _, header in segment.scan_from(segment.base_offset):
                    self._take_epoch(header)
            except CorruptData as error:
                self.report.damage.append(f"leader epochs of {segment.file.path}: {error}")
        self._epochs.dirty = True

    def _take_epoch(self, header: BatchHeader) -> None:
        if header.leader_epoch > self._epochs.latest:
            self._epochs.assign(header.leader_epoch, header.base_offset)

    def _open_segments(self, recovery_point: int) -> Segment | None:
        """Open all segments; return the first one that must be checked batch by batch, if any."""
        names = self._files.list_dir(self._directory)
        for base_offset in sorted(o for name in names if (o := offset_of(name, LOG_SUFFIX)) is not None):
            self._segments.add(Segment.open(self._files, self._directory, base_offset, self._config, self._now_ms))
        if not len(self._segments):
            return None
        unsynced = None if self._clean else self._segments.from_offset(recovery_point)[0]
        for segment in self._segments:
            if segment is unsynced or not self._load_segment(segment):
                return segment
        return None

    def _load_segment(self, segment: Segment) -> bool:
        """Load a segment's indexes; return False if it must be checked batch by batch."""
        following = self._segments.following(segment)
        try:
            segment.aborted_index.entries()
            if following is None:
                segment.load_active()
            else:
                segment.load_sealed(following.base_offset)
        except (FileNotFoundError, CorruptIndex) as error:
            self.report.rebuilt.append(f"indexes of {segment.file.path}: {error}")
            if following is None:
                return False
            self._rebuild_indexes(segment)
        except CorruptData as error:  # a torn tail or a bad index of aborted transactions: both need the batches
            self.report.rebuilt.append(f"{segment.file.path}: {error}")
            return False
        return True

    def _rebuild_indexes(self, segment: Segment) -> None:
        following = self._segments.following(segment)
        try:
            segment.rebuild_indexes()
        except CorruptData as error:
            self.report.damage.append(str(error))
        if following is not None:
            segment.seal(following.base_offset)

    def _recover(self, first: Segment, snapshots: ProducerSnapshots, log_start: int) -> None:
        producers = self._producers
        # The epoch checkpoint may be older than a truncation, so epochs from here on are taken from the batches.
        self._epochs.truncate_from_end(first.base_offset)
        snapshots.keep_range(-1, first.base_offset)
        reload_producers(producers, snapshots, self._segments, log_start, first.base_offset, self._config, self._now_ms)
        pending = self._segments.from_offset(first.base_offset)
        while pending:
            segment = pending.pop(0)
            producers.end_offset = segment.base_offset
            if segment.base_offset > log_start:
                snapshots.write(segment.base_offset, producers.entries())
            size = segment.size
            self._recovering = segment
            reason = segment.recover(self._visit)
            if reason is None and pending and self._is_gap(segment.next_offset, pending[0].base_offset):
                reason = f"the next segment begins at offset {pending[0].base_offset}: the records in between are lost"
            self.report.segments_checked += 1
            if reason is not None:
                cut = Cut(segment.file.path, segment.size, size - segment.size, segment.next_offset, reason)
                self.report.cuts.append(cut)
                for dropped in pending:
                    self.report.dropped_segments.append((dropped.file.path, dropped.size))
                    self._segments.remove(dropped)
                    dropped.delete()
                return
            if pending:
                segment.seal(pending[0].base_offset)

    def _is_gap(self, end: int, following: int) -> bool:
        """Return whether records are missing between two segments.

        Files reach the disk in any order: a crash can cut one segment at the end of a batch and leave the next one complete.
        Only the cleaner may leave gaps in the offsets.
        """
        return end < following and not self._config.is_compacted

    def _visit(self, header: BatchHeader, batch: memoryview) -> None:
        self._take_epoch(header)
        completed = replay_batch(self._producers, header, batch)
        self._producers.end_offset = header.next_offset
        self._recovering.aborted_index.note(completed)

    def _drop_all(self, snapshots: ProducerSnapshots, log_start: int) -> None:
        """Drop all segments, because the log ends below its start: files are missing and the rest is meaningless."""
        for segment in list(self._segments):
            self.report.dropped_segments.append((segment.file.path, segment.size))
            self._segments.remove(segment)
            segment.delete()
        self._epochs.clear()
        snapshots.keep_range(log_start, log_start)
        self._producers.reset(log_start)


def reload_producers(
    producers: ProducerState,
    snapshots: ProducerSnapshots,
    segments: Segments,
    log_start: int,
    log_end: int,
    config: LogConfig,
    now_ms: int,
) -> None:
    """Rebuild the producer state at `log_end` from the newest snapshot up to there and the batches after it.

    Raise CorruptData if a batch is bad.
    """
    snapshots.keep_range(log_start, log_end)
    found = snapshots.load_latest()
    if found is None:
        producers.reset(log_start)
    else:
        producers.reset(*found)
        producers.expire(now_ms, config.producer_id_expiration_ms)
    for segment in segments.from_offset(producers.end_offset):
        if segment.base_offset >= log_end:
            break
        for position, header in segment.scan_from(producers.end_offset):
            if header.base_offset >= log_end:
                break
            if header.producer_id >= 0:
                batch = segment.file.read(position, header.size) if header.is_control else None
                replay_batch(producers, header, batch)
    producers.end_offset = log_end
