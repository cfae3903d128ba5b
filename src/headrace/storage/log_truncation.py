"""Removal of records from a log: truncation at its end, deletion at its start, replacement by the cleaner's segments."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.errors import ErrorCode, KafkaError
from headrace.storage.log_state import LogState
from headrace.storage.recovery import reload_producers
from headrace.storage.segments.deleted_segments import DeletedSegments
from headrace.storage.segments.segment import Segment


class TruncatableLog(LogState):
    def truncate_to(self, offset: int, now_ms: int) -> int:
        """Drop everything at and above `offset`, including any batch that spans it, and return the new log end.

        The recovery point must be checkpointed BEFORE the next append: the one on disk may be too high.
        """
        if offset >= self.log_end:
            # A leader that appended nothing has recorded an epoch at the log end which other replicas may not know.
            self.epochs.truncate_from_end(self.log_end)
            self._epoch = self.epochs.latest
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
        self.deletion_queue.add(DeletedSegments(now_ms + self.config.file_delete_delay_ms, self.files, old, snapshots))

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
        """Remove the oldest segments, never the active one. Their files are renamed now and removed later (`deletion_queue`)."""
        assert 0 < count < len(self.segments), f"{count} of {len(self.segments)} segments of {self.topic_partition}"
        self.discard_swap()
        removed = self.segments.remove_first(count)
        start = self.segments.first.base_offset
        self.advance_log_start(start)
        self._unsynced_segments = [one for one in self._unsynced_segments if one.base_offset >= start]
        self._new_names = True
        snapshots = self.snapshots.mark_deleted(0, start)
        self.deletion_queue.add(
            DeletedSegments(now_ms + self.config.file_delete_delay_ms, self.files, removed, snapshots)
        )
