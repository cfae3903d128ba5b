"""One partition on this node: its appends, reads and leadership. Everything runs to completion, so there are no locks.

For now the leader is the only in-sync replica, so the high watermark follows the log end; only `advance` moves it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NodeId, TopicPartition, Uuid
from headrace.options.table import LONG_MAX
from headrace.records.batch import HEADER_BYTES, BatchHeader, pack_header, unpack_header
from headrace.records.control import TransactionMarker, build_marker
from headrace.records.validate_batch import Checked
from headrace.replication.batch_checks import DECOMPRESSED_BYTES_MAX, BatchChecks
from headrace.replication.traffic import TopicTraffic
from headrace.replication.verification import Guard, Guards
from headrace.storage.append import AppendInfo
from headrace.storage.file_range import FileRange
from headrace.storage.files import DISK_FULL, free_bytes_needed, is_transient
from headrace.storage.indexes.timestamps import TimestampedOffset
from headrace.storage.log import Log
from headrace.storage.retention import DELETE_POLICY, enforce

if TYPE_CHECKING:
    from headrace.replication.group_commit import GroupCommit, Synced

logger = logging.getLogger(__name__)  # `log` is the partition's

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6

ALL_RECORDS = -1  # DeleteRecords: up to the high watermark
ALL_ACKS = -1


class ReadPlan(NamedTuple):
    """What a fetch would return; nothing has been read from the disk yet."""

    range: FileRange | None  # None if there is nothing to return
    high_watermark: int
    last_stable_offset: int
    log_start: int
    diverging: tuple[int, int] | None = None  # (epoch, end offset) where the client's log diverged from ours
    incomplete: bool = False  # whether there are records, but the first batch exceeds the byte limit


class Partition:
    def __init__(self, name: TopicPartition, topic_id: Uuid, node_id: NodeId, log: Log, high_watermark: int) -> None:
        self.name = name
        self.topic_id = topic_id
        self.node_id = node_id
        self.log = log
        self.high_watermark = min(max(high_watermark, log.log_start), log.log_end)
        self.leader = -1
        self.leader_epoch = -1
        self.isr: tuple[int, ...] = ()
        self.min_isr = 1
        self.traffic = TopicTraffic()  # shared by the partitions of a topic
        self.guards = Guards()
        self._watchers: dict[Callable[[], None], None] = {}
        self.checks = BatchChecks(log.config)
        self._append_time = False
        self.offline: str | None = None  # the reason, once the disk has failed
        self.waits_for_disk = False  # whether flush.messages is set, so that responses may have to wait (see `flushed`)
        self.commit: GroupCommit | None = None  # set by the owner of the event loop
        self.on_failure: Callable[[OSError], None] = self._go_offline_alone
        self._is_refusing = False  # whether the last append failed for lack of disk space, descriptors or memory
        self.free_bytes_needed: int | None = (
            None  # disk space that the last append lacked; None if that was not the problem
        )
        self._held_from: int | None = None  # bound of the high watermark until a sync is done; None if there is none
        self._held_until = 0  # log end that this sync, or the one after it, must reach

    @property
    def is_leader(self) -> bool:
        return self.leader == self.node_id and self.offline is None

    def configure(self, min_isr: int) -> None:
        """Cache the options that appends need. Call this after the log was configured."""
        config = self.log.config
        self.min_isr = min_isr
        self.checks = BatchChecks(config)
        self.waits_for_disk = self.commit is not None and config.flush_messages < LONG_MAX
        self._append_time = config.message_timestamp_type == "LogAppendTime"

    def lead(self, leader: int, leader_epoch: int, isr: tuple[int, ...]) -> None:
        """Apply the leader and ISR from metadata; an epoch older than the current one is ignored."""
        if leader_epoch < self.leader_epoch or self.offline is not None:
            return
        changed = (leader, leader_epoch) != (self.leader, self.leader_epoch)
        self.leader, self.leader_epoch, self.isr = leader, leader_epoch, isr
        if self.is_leader:
            if leader_epoch > self.log.epochs.latest:
                self.log.assign_epoch(leader_epoch, self.log.log_end)
            self.advance()
        if changed:
            self.guards.clear()
            self._wake()

    # --- appending

    def check_leader(self, current_leader_epoch: int = -1) -> None:
        """Raise KafkaError unless this node leads the partition in the client's leader epoch, if that is given.

        An older epoch is fenced; a newer one means that this node is behind.
        """
        if self.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"{self.name} is at leader epoch {self.leader_epoch}")
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{self.name} is at leader epoch {self.leader_epoch}")
        if self.leader != self.node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self.node_id} does not lead {self.name}")

    def admit(self, acks: int) -> None:
        """Raise KafkaError if nothing may be appended now.

        The next calls are `check` (in a thread if `checks.needs_thread`) and `append`.
        """
        if self.leader != self.node_id or self.offline is not None:
            self.check_leader()
        if acks == -1 and len(self.isr) < self.min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.name} has {len(self.isr)} in-sync replicas, min.insync.replicas is {self.min_isr}",
            )

    def check(
        self, records: memoryview, header: BatchHeader, now_ms: int, decompressed_max: int = DECOMPRESSED_BYTES_MAX
    ) -> Checked:
        """Check a produced batch and count it if it is too large; see `BatchChecks.check`."""
        try:
            return self.checks.check(records, header, now_ms, decompressed_max)
        except KafkaError as error:
            if error.code is ErrorCode.MESSAGE_TOO_LARGE:
                self.traffic.bytes_rejected += header.size
            raise

    def append(
        self,
        records: memoryview,
        header: BatchHeader,
        max_timestamp: int,
        now_ms: int,
        *,
        check_producer: bool = True,
        transaction_version: int = 0,
        marker: TransactionMarker | None = None,
    ) -> AppendInfo:
        """Stamp the batch and write it.

        `check_producer` is false for batches that a coordinator writes on behalf of a producer: they have no sequences. Raise
        KafkaError KAFKA_STORAGE_ERROR, with nothing appended, if the disk refuses.
        """
        try:
            info = self.log.append_as_leader(
                records,
                header,
                self.leader_epoch,
                now_ms,
                max_timestamp=max_timestamp,
                append_time=self._append_time,
                check_producer=check_producer,
                transaction_version=transaction_version,
                marker=marker,
            )
        except OSError as error:
            # Restore the header: a retry must not find our stamps in it.
            records[:HEADER_BYTES] = pack_header(header)
            raise self._refusal(error, len(records)) from error
        if self._is_refusing:
            self._is_refusing, self.free_bytes_needed = False, None
            logger.warning("%s accepts records again", self.name)
        if not info.duplicate:
            if self.waits_for_disk:
                self._hold_back(info.first_offset)
            self.advance()
            if self._watchers:
                self._wake()
        return info

    # --- transactions

    def guard(self, producer_id: int, producer_epoch: int, base_sequence: int, *, adds: bool) -> Guard:
        """Return the guard for `append_transactional`.

        If it `waits`, the coordinator must verify the transaction first. Raise KafkaError INVALID_PRODUCER_EPOCH if the log
        knows a later epoch.
        """
        entry = self.log.producers.entry(producer_id)
        return self.guards.begin(entry, producer_id, producer_epoch, base_sequence, self.leader_epoch, adds=adds)

    def append_transactional(
        self,
        records: memoryview,
        header: BatchHeader,
        max_timestamp: int,
        now_ms: int,
        guard: Guard,
        *,
        check_producer: bool = True,
    ) -> AppendInfo:
        """Append a batch to its transaction, opening it if necessary.

        Raise KafkaError INVALID_TXN_STATE if a marker has removed the guard in the meantime.
        """
        self.guards.check(self.log.producers.entry(header.producer_id), header, guard, self.leader_epoch)
        info = self.append(
            records,
            header,
            max_timestamp,
            now_ms,
            check_producer=check_producer,
            transaction_version=guard.transaction_version,
        )
        if not info.duplicate:
            self.guards.opened(header.producer_id)
        return info

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: TransactionMarker, transaction_version: int, now_ms: int
    ) -> AppendInfo:
        """End the producer's transaction in this partition.

        Raise KafkaError INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED if the marker comes too late.
        """
        if producer_id < 0 or producer_epoch < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no producer has id {producer_id} and epoch {producer_epoch}")
        self.admit(ALL_ACKS)
        batch = memoryview(
            build_marker(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        )
        info = self.append(
            batch, unpack_header(batch), now_ms, now_ms, transaction_version=transaction_version, marker=marker
        )
        self.guards.ended(producer_id, producer_epoch)
        return info

    # --- disk errors

    def _refusal(self, error: OSError, batch_bytes: int) -> KafkaError:
        if not is_transient(error):
            return self.fail(error)
        # The log is unchanged and readable; appends succeed again once there is space.
        self.free_bytes_needed = free_bytes_needed(error, batch_bytes)
        what = "the disk is full" if error.errno in DISK_FULL else "the node is short of descriptors or memory"
        if not self._is_refusing:
            self._is_refusing = True  # logged once, not for each retry of a producer
            logger.error(
                "%s refuses records: %s (%s: %s); consumers are still served",
                self.name,
                what,
                self.log.directory,
                error.strerror,
            )
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {what} ({error.strerror})")

    def fail(self, error: OSError) -> KafkaError:
        """Take the whole directory offline after a disk error, and return the error for the client.

        Writes to the directory can no longer be trusted. The node continues with its other directories.
        """
        self.on_failure(error)
        if self.offline is None:  # directories are no longer tracked: the node is closing
            self._go_offline_alone(error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline or "")

    def go_offline(self, why: str) -> None:
        self.leader = -1
        self.offline = f"{self.name} is offline: {why}"
        if self.commit is not None:
            self.commit.closed = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)
        self._wake()

    def _go_offline_alone(self, error: OSError) -> None:
        self.go_offline(error.strerror or str(error))

    def advance(self) -> None:
        """Move the high watermark to what all in-sync replicas have, which for now is this node's log end."""
        if len(self.isr) >= self.min_isr:
            end = self.log.log_end
            self.high_watermark = end if self._held_from is None else max(self.high_watermark, self._held_from)

    # --- syncing before acknowledging

    def _hold_back(self, first_offset: int) -> None:
        """Hold back the high watermark and start a sync once `flush.messages` records are not covered by one."""
        assert self.commit is not None
        end = self.log.log_end
        if end - self.commit.planned_end >= self.log.config.flush_messages:
            if self._held_from is None:
                self._held_from = first_offset
            self._held_until = end
            self.commit.sync()

    @property
    def is_held(self) -> bool:
        return self._held_from is not None

    def synced(self) -> None:
        """Advance the high watermark after the recovery point has moved."""
        if self._held_from is not None:
            reached = self.log.recovery_point
            self._held_from = None if reached >= self._held_until else max(self._held_from, reached)
            self.advance()
            self._wake()

    def flushed(self, offset: int) -> Synced | None:
        """Return None if an append with this last offset may be acknowledged now, or the sync to wait for.

        The result of the sync may be an error.
        """
        if self._held_from is None or offset < self._held_from:
            return None
        assert self.commit is not None
        return self.commit.under_way or self.commit.sync()

    # --- deleting

    def delete_records(self, offset: int, now_ms: int) -> int:
        """Hide the records below `offset`, or below the high watermark for ALL_RECORDS, and return the log start.

        This serves DeleteRecords. Some whole segments are deleted at once; retention deletes the rest.
        """
        self.check_leader()
        config = self.log.config
        if config.is_compacted and DELETE_POLICY not in config.cleanup_policy:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"{self.name} is compacted, records cannot be deleted by offset"
            )
        target = self.high_watermark if offset == ALL_RECORDS else offset
        if not 0 <= target <= self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.name}: records can be deleted up to the high watermark {self.high_watermark}",
            )
        moved, low_watermark = self.log.advance_log_start(target), self.log.log_start
        if moved:
            self._wake()
            try:
                enforce(self.log, self.high_watermark, now_ms)
            except OSError as error:
                if not is_transient(error):
                    raise self.fail(error) from error
        return low_watermark  # not the current log start: retention may have moved it further

    # --- reading

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def plan_read(
        self, offset: int, max_bytes: int, *, committed_only: bool, last_fetched_epoch: int, min_one: bool
    ) -> ReadPlan:
        """Plan a read at `offset`, bounded by the high watermark or, with `committed_only`, the last stable offset.

        Raise KafkaError OFFSET_OUT_OF_RANGE if `offset` is outside the log.
        """
        log = self.log
        stable = self.last_stable_offset
        bound = stable if committed_only else self.high_watermark
        if last_fetched_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(last_fetched_epoch)
            if epoch < 0 or end < 0 or offset < log.log_start:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.name} has no records of leader epoch {last_fetched_epoch}"
                )
            if epoch < last_fetched_epoch or end < offset:
                return ReadPlan(None, self.high_watermark, stable, log.log_start, (epoch, end))
        found = log.read(offset, max_bytes, bound, min_one=min_one)
        # A partial first batch is of no use: return nothing and leave the bytes to other partitions.
        incomplete = 0 < found.range.size < found.first_batch_size
        useful = found.range if found.range.size and not incomplete else None
        return ReadPlan(useful, self.high_watermark, stable, log.log_start, incomplete=incomplete)

    def find_offset(self, timestamp: int, *, committed_only: bool) -> TimestampedOffset | None:
        """Return the offset for a special timestamp, or the first record at or after a real one (ListOffsets).

        Return None if that record is not visible to the client.
        """
        log = self.log
        bound = self.last_stable_offset if committed_only else self.high_watermark
        if timestamp == LATEST:
            return TimestampedOffset(bound, -1, self.leader_epoch)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return TimestampedOffset(log.log_start, -1, log.epochs.epoch_for(log.log_start))
        if timestamp == LATEST_TIERED:
            return TimestampedOffset(-1, -1, -1)
        if timestamp == EARLIEST_PENDING_UPLOAD:
            return TimestampedOffset(-1, -1, -1)
        found = log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.find_by_timestamp(timestamp)
        return found if found is not None and found.offset < bound else None

    # --- watching

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as soon as there may be more to read or the response may differ."""
        self._watchers[wake] = None

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._watchers.pop(wake, None)

    def _wake(self) -> None:
        watchers, self._watchers = self._watchers, {}
        for wake in watchers:
            wake()
