"""The log of one partition: batches in segments, with matching indexes, producer state and leader epochs.

A log has one owner and is used from one thread. Only `SyncPlan.run`, `close` and reads of a `FileRange` may run in others.
Invariant: log_start <= recovery_point <= log_end. An append changes memory only AFTER its bytes are in the file.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, TopicPartition, Uuid
from headrace.records.batch import CONTROL, LENGTH_OVERHEAD_BYTES, BatchHeader, Buffer, stamp, stamp_append_time
from headrace.records.control import TransactionMarker
from headrace.storage.append import AppendInfo, analyze_follower, replay_batch, stamp_max_timestamp, transaction_marker
from headrace.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, encode_leader_epochs
from headrace.storage.deleted_segments import Doomed, DoomedSegments
from headrace.storage.file_range import FileRange, LogRead
from headrace.storage.files import File, Files
from headrace.storage.indexes.aborted_index import AbortedTransaction, collect_aborted
from headrace.storage.indexes.timestamps import TimestampedOffset, find_by_timestamp, find_largest
from headrace.storage.leader_epochs import EpochEnd
from headrace.storage.log_config import LogConfig
from headrace.storage.names import DELETE_DIR_SUFFIX, marked_dir_name
from headrace.storage.partition_metadata import claim_directory
from headrace.storage.producer_state import CompletedTransaction
from headrace.storage.recovery import LoadedLog, Loader, RecoveryReport, reload_producers
from headrace.storage.segment import Segment
from headrace.storage.sync import SyncPlan

NO_APPEND_TIME = -1


class Log:
    def __init__(
        self,
        files: Files,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        topic_id: Uuid,
        loaded: LoadedLog,
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.segments = loaded.segments
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.snapshots = loaded.snapshots
        self.log_start = loaded.log_start
        self.recovery_point = loaded.recovery_point
        self.doomed = DoomedSegments()
        self.cleaned_to = 0  # offset below which no key has two records; unknown if it is outside the log
        self.is_being_cleaned = False
        self.swapping: Segment | None = None  # the cleaner's segment while its files are named `.swap`
        self._active = self.segments.active
        self.log_end = self._active.next_offset
        self._epoch = self.epochs.latest
        self.generation = 0  # number of truncations since the log was opened
        self._unsynced_paths: list[str] = []
        self._unsynced_segments = [
            one for one in self.segments.from_offset(self.recovery_point) if one is not self._active
        ]
        # Whether the directory itself has to be synced.
        self._new_names = self.recovery_point < self.log_end or self._active.size == 0
        self._unflushed_since_ms: int | None = None

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: Uuid = ZERO_UUID,
        recovery_point: int = 0,
        log_start: int = 0,
        clean: bool = False,
        now_ms: int,
    ) -> tuple[Log, RecoveryReport]:
        """Open the log in `directory`, which is created if it is missing.

        Raise KafkaError INCONSISTENT_TOPIC_ID if the directory belongs to another topic of that name.
        """
        is_new = not files.exists(directory)
        if is_new:
            files.make_dirs(directory)
        owner, unsynced = claim_directory(files, directory, topic_id, is_new=is_new, clean=clean)
        loader = Loader(files, directory, config, now_ms, clean=clean)
        loaded = loader.create(log_start) if is_new else loader.load(recovery_point, log_start)
        log = cls(files, directory, topic_partition, config, owner, loaded)
        if unsynced is not None:
            log._unsynced_paths.append(unsynced)
            log._new_names = True
        log.check()
        return log, loader.report

    def check(self) -> None:
        assert 0 <= self.log_start <= self.recovery_point <= self.log_end, self._offsets_text()
        assert self.segments.first.base_offset <= self.log_start, self._offsets_text()
        assert self.segments.active is self._active, self._offsets_text()
        assert self._active.base_offset <= self.log_end == self._active.next_offset, self._offsets_text()
        assert self._active.size == self._active.file.size(), f"{self._active.file.path}: {self._active.size}"
        assert self.producers.end_offset <= self.log_end, self._offsets_text()

    def _offsets_text(self) -> str:
        bases = self.segments.base_offsets()
        return (
            f"{self.topic_partition}: start {self.log_start}, recovery point {self.recovery_point}, end {self.log_end}, "
            f"segments {bases[0]} to {bases[-1]}, active ends at {self._active.next_offset}"
        )

    def configure(self, config: LogConfig) -> None:
        self.config = config
        for segment in self.segments:
            segment.configure(config)

    # Appending

    def append_as_leader(
        self,
        batch: bytearray | memoryview,
        header: BatchHeader,
        leader_epoch: int,
        now_ms: int,
        *,
        max_timestamp: int | None = None,
        append_time: bool = False,
        check_producer: bool = True,
        transaction_version: int = 0,
        marker: TransactionMarker | None = None,
    ) -> AppendInfo:
        """Append one checked batch at the next offsets.

        `max_timestamp` is the largest timestamp of the records, if it was computed. `check_producer` is false for batches of a
        coordinator or the quorum, which have no sequences. `marker` is the content of a control batch that was built here.
        Raise KafkaError if the batch is too large, or does not fit the producer's epoch, sequence or transaction. An OSError
        leaves the log unchanged.
        """
        size = header.batch_length + LENGTH_OVERHEAD_BYTES
        if size > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"{size} bytes, segment.bytes is {self.config.segment_bytes}"
            )
        if header.producer_id >= 0:
            if header.attributes & CONTROL:
                marker = marker or transaction_marker(batch)
                if marker is not None:
                    self.producers.check_marker(header, marker, transaction_version=transaction_version)
            else:
                found = self.producers.check(header, sequences=check_producer, transaction_version=transaction_version)
                if found is not None:
                    return AppendInfo(found.first_offset, found.last_offset, found.timestamp, True)
        timestamp = header.max_timestamp
        if append_time:
            stamp_append_time(batch, 0, header, now_ms)
            timestamp = now_ms
        elif max_timestamp is not None and max_timestamp != timestamp:
            stamp_max_timestamp(batch, header, max_timestamp)
            timestamp = max_timestamp
        first = self.log_end
        last = first + header.last_offset_delta
        active = self._active
        if active.should_roll(size, last, timestamp, now_ms):
            active = self.roll(now_ms)
        stamp(batch, 0, header, first, leader_epoch)
        if marker is None:
            active.append(batch, first, last, timestamp)
        else:
            self._append_marker(
                active, batch, first, timestamp, self.producers.completion(header.producer_id, marker, first)
            )
        self.log_end = last + 1
        if leader_epoch != self._epoch:
            self.assign_epoch(leader_epoch, first)
        completed = None
        if header.producer_id >= 0:
            if marker is not None:
                completed = self.producers.ended(header, marker, first, timestamp)
            elif not header.attributes & CONTROL:
                self.producers.appended(header, first, timestamp)
        return AppendInfo(first, last, now_ms if append_time else NO_APPEND_TIME, False, completed)

    def _append_marker(
        self,
        active: Segment,
        batch: bytearray | memoryview,
        offset: int,
        timestamp: int,
        completed: CompletedTransaction | None,
    ) -> None:
        """Write the index entry BEFORE the marker.

        If the disk had space only for the marker, aborted records would become visible.
        """
        active.aborted_index.note(completed)
        try:
            active.append(batch, offset, offset, timestamp)
        except OSError:
            active.aborted_index.truncate_to(offset)
            raise

    def append_as_follower(self, buffer: Buffer, now_ms: int) -> AppendInfo | None:
        """Append a leader's batches with their offsets and epochs; return None if there is no whole batch.

        Raise CorruptBatch or UnexpectedBatch, before anything is written, if a check fails. After an OSError some batches may
        have been written, and the log ends after them.
        """
        headers, size = analyze_follower(buffer, self.log_end, self._epoch)
        if not headers:
            return None
        first_offset = headers[0].base_offset
        view = memoryview(buffer)
        start = position = 0
        group: list[BatchHeader] = []
        for header in headers:
            ahead = position - start
            if self._active.should_roll(ahead + header.size, header.last_offset, header.max_timestamp, now_ms):
                self._append_group(view[start:position], group)
                start, group = position, []
                self.roll(now_ms, header.base_offset)
            group.append(header)
            position += header.size
        self._append_group(view[start:size], group)
        return AppendInfo(first_offset, self.log_end - 1, NO_APPEND_TIME, False)

    def _append_group(self, data: memoryview, headers: list[BatchHeader]) -> None:
        if not headers:
            return
        active = self._active
        active.append_all(data, headers)
        self.log_end = active.next_offset
        position = 0
        for header in headers:
            if header.leader_epoch > self._epoch:
                self.assign_epoch(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                completed = replay_batch(self.producers, header, data[position : position + header.size])
                active.aborted_index.note(completed)
            position += header.size

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Record where a leader epoch begins.

        A new leader calls this with the log end; appends call it for the first batch of an epoch.
        """
        self.epochs.assign(epoch, start_offset)
        self._epoch = self.epochs.latest

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return self.epochs.end_offset_for(epoch, self.log_end)

    def roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """Start a new active segment, unless the active one is empty and already begins at the right offset.

        An OSError leaves the log unchanged.
        """
        old = self._active
        base_offset = self.log_end if base_offset is None else max(base_offset, self.log_end)
        if old.size == 0 and old.base_offset == base_offset:
            return old
        old.finish()
        self.producers.end_offset = self.log_end
        path = self.snapshots.write(base_offset, self.producers.entries())
        new = Segment.create(self.files, self.directory, base_offset, self.config, now_ms)
        old.seal(base_offset)
        self._unsynced_segments.append(old)
        self.segments.add(new)
        self._active = new
        self.log_end = base_offset
        self._new_names = True
        if path is not None:
            self._unsynced_paths.append(path)
        return new

    # Reading

    def read(self, offset: int, max_bytes: int, upper_offset: int | None = None, *, min_one: bool = True) -> LogRead:
        """Locate the batches from `offset` on that are entirely below `upper_offset`, in one segment.

        With `min_one` the first batch is included even if it is larger than `max_bytes`. Raise KafkaError OFFSET_OUT_OF_RANGE if
        `offset` is below the log start or above the log end.
        """
        log_end = self.log_end
        if not self.log_start <= offset <= log_end:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic_partition}, which has {self.log_start} to {log_end}",
            )
        upper = log_end if upper_offset is None or upper_offset > log_end else upper_offset
        segment = self.segments.floor(offset) if offset < self._active.base_offset else self._active
        while segment is not None and offset < upper:
            place = segment.locate(offset)
            if place is not None:
                end = segment.size
                if upper < segment.next_offset and (above := segment.locate(upper)) is not None:
                    end = above.position
                size = min(end - place.position, max(max_bytes, place.size) if min_one else max_bytes)
                return LogRead(FileRange(segment.file, place.position, max(size, 0)), place.base_offset, place.size)
            segment = self.segments.following(segment)
        return LogRead(FileRange(self._active.file, self._active.size, 0), offset, 0)

    def find_by_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """Return the first record whose timestamp is at least `timestamp`."""
        return find_by_timestamp(self.segments, timestamp, self.log_start)

    def max_timestamp_offset(self) -> TimestampedOffset | None:
        """Return the first record with the largest timestamp."""
        return find_largest(self.segments, self.log_start)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset up to which read_committed consumers may read.

        The high watermark must not go back between calls.
        """
        self.producers.high_watermark_advanced(high_watermark)
        unstable = self.producers.first_unstable_offset
        return high_watermark if unstable is None else min(high_watermark, max(unstable, self.log_start))

    def aborted_transactions(
        self, start_offset: int, upper_offset: int, read: FileRange | None = None
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap the offsets.

        With `read`, most of those that begin after the end of that range are left out.
        """
        return collect_aborted(self.segments.from_offset(start_offset), start_offset, upper_offset, read)

    # Truncating and deleting

    def truncate_to(self, offset: int, now_ms: int) -> int:
        """Drop everything at and above `offset`, including any batch that spans it, and return the new log end.

        The recovery point must be checkpointed BEFORE the next append: the one on disk may be too high.
        """
        if offset >= self.log_end:
            return self.log_end
        if offset <= self.segments.first.base_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return self.log_end
        self._begin_cut(offset)
        for segment in reversed(self.segments.from_offset(offset)[1:]):
            self.segments.remove(segment)
            segment.delete()
        self._active = self.segments.active
        self._unsynced_segments = [one for one in self._unsynced_segments if one.base_offset < self._active.base_offset]
        self.log_end = self._active.truncate_to(offset)
        self.log_start = min(self.log_start, self.log_end)
        self.recovery_point = min(self.recovery_point, self.log_end)
        self.epochs.truncate_from_end(self.log_end)
        self._epoch = self.epochs.latest
        reload_producers(
            self.producers, self.snapshots, self.segments, self.log_start, self.log_end, self.config, now_ms
        )
        return self.log_end

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drop everything and continue the log at `offset`, which may be above or below the old log end."""
        self._begin_cut(offset)
        for segment in reversed(list(self.segments)):
            self.segments.remove(segment)
            segment.delete()
        self._active = Segment.create(self.files, self.directory, offset, self.config, now_ms)
        self.segments.add(self._active)
        self._unsynced_segments = []
        self.log_start = self.recovery_point = self.log_end = offset
        self.epochs.clear()
        self._epoch = self.epochs.latest
        self.snapshots.keep_range(offset, offset)
        self.producers.reset(offset)
        self._new_names = True

    def _begin_cut(self, offset: int) -> None:
        self.generation += 1
        self.cleaned_to = min(self.cleaned_to, offset)
        self.discard_swap()

    def discard_swap(self) -> None:
        """Delete the cleaner's segment if it is being swapped in. Call this BEFORE segments are removed.

        Otherwise a restart would finish the swap and bring removed records back.
        """
        swapping, self.swapping = self.swapping, None
        if swapping is not None:
            swapping.delete()

    def replace(self, old: Sequence[Segment], new: Segment, now_ms: int) -> None:
        """Replace `old` with the cleaner's segment. The old segments stay readable; their files are removed later."""
        self.segments.replace(old, new)
        self.swapping = None
        self._unsynced_segments = [one for one in self._unsynced_segments if one not in old]
        self._new_names = True
        snapshots = self.snapshots.mark_deleted(new.base_offset + 1, new.next_offset)
        self.doomed.add(Doomed(now_ms + self.config.file_delete_delay_ms, self.files, old, snapshots))

    def advance_log_start(self, offset: int) -> bool:
        """Hide the records below `offset` and return whether the log start moved; `retention` removes the files.

        Raise KafkaError OFFSET_OUT_OF_RANGE if `offset` is above the log end.
        """
        if offset > self.log_end:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is above the log end {self.log_end}")
        if offset <= self.log_start:
            return False
        self.log_start = offset
        self.recovery_point = max(self.recovery_point, offset)
        self.epochs.truncate_from_start(offset)
        return True

    def delete_oldest(self, count: int, now_ms: int) -> None:
        """Remove the oldest segments, never the active one. The files are renamed now and removed later (`doomed`)."""
        assert 0 < count < len(self.segments), f"{count} of {len(self.segments)} segments of {self.topic_partition}"
        self.discard_swap()
        gone = self.segments.remove_first(count)
        start = self.segments.first.base_offset
        self.advance_log_start(start)
        self._unsynced_segments = [one for one in self._unsynced_segments if one.base_offset >= start]
        self._new_names = True
        snapshots = self.snapshots.mark_deleted(0, start)
        self.doomed.add(Doomed(now_ms + self.config.file_delete_delay_ms, self.files, gone, snapshots))

    @property
    def size(self) -> int:
        """Return the total size of all segments in bytes."""
        return sum(segment.size for segment in self.segments)

    # Syncing

    def write_pending_indexes(self) -> None:
        self._active.write_pending()

    def flush_due(self, now_ms: int) -> bool:
        """Return whether `flush.ms` has passed since a call of this method first saw unsynced records."""
        if self.log_end == self.recovery_point:
            self._unflushed_since_ms = None
            return False
        if self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms
        return now_ms - self._unflushed_since_ms >= self.config.flush_ms

    def pending_sync(self) -> SyncPlan | None:
        """Plan a sync that lets the recovery point move to the log end; return None if there is nothing to sync.

        Only one plan may be outstanding at a time.
        """
        if self.recovery_point == self.log_end and not self._new_names and not self.epochs.dirty:
            return None
        open_files: list[File] = []
        for segment in (*self._unsynced_segments, self._active):
            open_files += segment.files_to_sync()
        self._unsynced_segments = []
        replacements = []
        if self.epochs.dirty:
            path = f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}"
            replacements.append((path, encode_leader_epochs(self.epochs.entries())))
            self.epochs.dirty = False
        # A new log is also a new entry in the parent directory.
        directories = [self.directory, self.directory.rsplit("/", 1)[0]] if self._new_names else []
        paths, self._unsynced_paths, self._new_names = self._unsynced_paths, [], False
        return SyncPlan(self.log_end, self.generation, self.files, open_files, paths, replacements, directories)

    def synced(self, plan: SyncPlan) -> None:
        """Advance the recovery point after the plan has run. Call this BEFORE the recovery point is checkpointed."""
        if plan.generation == self.generation:
            self.recovery_point = max(self.recovery_point, plan.offset)
            self._unflushed_since_ms = None
        else:
            # A truncation closed files while the plan ran; the next plan syncs what this one missed.
            self.not_synced(plan)

    def not_synced(self, plan: SyncPlan) -> None:
        """Hand the work of a failed plan to the next one."""
        self._unsynced_segments = [one for one in self.segments if one is not self._active]
        self._unsynced_paths = [*plan.paths, *self._unsynced_paths]
        self._new_names = self.epochs.dirty = True

    # Closing and deleting

    def close(self) -> None:
        """Write and sync the log, indexes, producer snapshot and epochs, then close all files.

        This blocks: call it in a thread, while no plan is outstanding.
        """
        self._active.finish()
        aborted = self._active.aborted_index.file_to_sync()
        self._new_names = self._new_names or aborted is not None
        self.producers.end_offset = self.log_end
        if self.log_end > (self.snapshots.latest or self.log_start):
            path = self.snapshots.write(self.log_end, self.producers.entries())
            self._unsynced_paths += [path] if path else []
            self._new_names = True
        plan = self.pending_sync()
        if plan is not None:
            plan.run()
            self.synced(plan)
        self._active.offset_index.file_to_sync().sync()
        self._active.time_index.file_to_sync().sync()
        if aborted is not None:
            aborted.sync()
        self.abandon()

    def abandon(self) -> None:
        """Close the files without writing anything, because the disk has failed or the files will be removed."""
        for segment in self.segments:
            segment.close()
        self.doomed.close()

    def follow(self, directory: str) -> None:
        """Update all paths after the directory was renamed. No other thread may be using the files."""
        self._unsynced_paths = [directory + path.removeprefix(self.directory) for path in self._unsynced_paths]
        self.directory, self._new_names = directory, True
        for follow in (self.snapshots.follow, *(segment.follow for segment in self.segments)):
            follow(directory)

    def delete_directory(self, unique: str) -> str:
        """Rename the directory, which frees its name at once, and return the new path for the caller to remove."""
        self.abandon()
        parent = self.directory.rsplit("/", 1)[0]
        target = f"{parent}/{marked_dir_name(self.topic_partition, unique, DELETE_DIR_SUFFIX)}"
        self.files.rename(self.directory, target)
        self.files.sync_dir(parent)
        return target
