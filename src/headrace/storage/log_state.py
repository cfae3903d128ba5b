"""The state of a log, and what does not touch its batches: configuration, syncing, closing, renaming.

Invariant: log_start <= recovery_point <= log_end.
"""

from __future__ import annotations

from headrace.base.ids import TopicPartition, Uuid
from headrace.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, encode_leader_epochs
from headrace.storage.files import File, Files
from headrace.storage.log_config import LogConfig
from headrace.storage.names import DELETE_DIR_SUFFIX, marked_dir_name
from headrace.storage.recovery import LoadedLog
from headrace.storage.segments.deleted_segments import DeletionQueue
from headrace.storage.segments.segment import Segment
from headrace.storage.sync import SyncPlan


class LogState:
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
        self.deletion_queue = DeletionQueue()
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
        """Add the work of a failed plan to the next one."""
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
        self.deletion_queue.close()

    def set_directory(self, directory: str) -> None:
        """Update all paths after the directory was renamed. No other thread may be using the files."""
        self._unsynced_paths = [directory + path.removeprefix(self.directory) for path in self._unsynced_paths]
        self.directory, self._new_names = directory, True
        for set_directory in (self.snapshots.set_directory, *(segment.set_directory for segment in self.segments)):
            set_directory(directory)

    def delete_directory(self, unique: str) -> str:
        """Rename the directory, which frees its name at once, and return the new path for the caller to remove."""
        self.abandon()
        parent = self.directory.rsplit("/", 1)[0]
        target = f"{parent}/{marked_dir_name(self.topic_partition, unique, DELETE_DIR_SUFFIX)}"
        self.files.rename(self.directory, target)
        self.files.sync_dir(parent)
        return target
