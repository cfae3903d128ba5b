"""The log of one partition: batches in segments, with matching indexes, producer state and leader epochs.

A log has one owner and is used from one thread. Only `SyncPlan.run`, `close` and reads of a `FileRange` may run in others. An
append changes memory only AFTER its bytes are in the file. `log_state` has the log's state and how it is synced and closed,
`log_truncation` how records are removed; this module opens, appends and reads.
"""

from __future__ import annotations

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, TopicPartition, Uuid
from headrace.records.batch import CONTROL, LENGTH_OVERHEAD_BYTES, BatchHeader, Buffer, stamp, stamp_append_time
from headrace.records.control import TransactionMarker
from headrace.storage.append import AppendInfo, analyze_follower, replay_batch, stamp_max_timestamp, transaction_marker
from headrace.storage.file_range import FileRange, LogRead
from headrace.storage.files import Files
from headrace.storage.indexes.aborted_index import AbortedTransaction, collect_aborted
from headrace.storage.indexes.timestamps import TimestampedOffset, find_by_timestamp, find_largest
from headrace.storage.leader_epochs import EpochEnd
from headrace.storage.log_config import LogConfig
from headrace.storage.log_truncation import TruncatableLog
from headrace.storage.partition_metadata import claim_directory
from headrace.storage.producer_state import CompletedTransaction
from headrace.storage.recovery import Loader, RecoveryReport
from headrace.storage.segments.segment import Segment

NO_APPEND_TIME = -1


class Log(TruncatableLog):
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
            raise self._larger_than_segment(size)
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

    def _larger_than_segment(self, size: int) -> KafkaError:
        limit = self.config.segment_bytes
        return KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, f"the batch has {size} bytes, segment.bytes is {limit}")

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
                f"offset {offset} is outside {self.topic_partition}, which has offsets {self.log_start} to {log_end}",
            )
        upper = log_end if upper_offset is None or upper_offset > log_end else upper_offset
        segment = self.segments.floor(offset) if offset < self._active.base_offset else self._active
        while segment is not None and offset < upper:
            located = segment.locate(offset)
            if located is not None:
                end = segment.size
                if upper < segment.next_offset and (above := segment.locate(upper)) is not None:
                    end = above.position
                size = min(end - located.position, max(max_bytes, located.size) if min_one else max_bytes)
                return LogRead(
                    FileRange(segment.file, located.position, max(size, 0)), located.base_offset, located.size
                )
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
