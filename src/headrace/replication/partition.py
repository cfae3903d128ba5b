"""One partition on this node: its appends and reads, as leader and as follower.

Everything runs to completion, so there are no locks. `local_replica` has the role, the high watermark and the disk.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.records.batch import HEADER_BYTES, BatchHeader, Buffer, pack_header, read_header, unpack_header
from headrace.records.control import TransactionMarker, build_marker
from headrace.records.validate_batch import Checked
from headrace.replication.batch_checks import DECOMPRESSED_BYTES_MAX
from headrace.replication.follower_state import restart_offset, truncation_offset
from headrace.replication.local_replica import ALL_ACKS, LocalReplica
from headrace.replication.verification import Guard
from headrace.storage.append import AppendInfo, analyze_follower
from headrace.storage.file_range import FileRange
from headrace.storage.files import is_transient
from headrace.storage.indexes.timestamps import TimestampedOffset
from headrace.storage.leader_epochs import UNDEFINED_EPOCH, EpochEnd
from headrace.storage.retention import DELETE_POLICY, enforce

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6

ALL_RECORDS = -1  # DeleteRecords: up to the high watermark
SUSPICIOUS_READS = 8  # consumers' reads in a row at one offset, after which the log is examined there


class ReadPlan(NamedTuple):
    """What a fetch would return; nothing has been read from the disk yet."""

    range: FileRange | None  # None if there is nothing to return
    high_watermark: int
    last_stable_offset: int
    log_start: int
    diverging: EpochEnd | None = None  # where the client's log diverged from ours
    incomplete: bool = False  # whether there are records, but the first batch exceeds the byte limit


class FollowerFetch(NamedTuple):
    """A follower's request for one partition, as far as its leader records it."""

    replica: int
    broker_epoch: int
    offset: int
    log_start: int
    last_fetched_epoch: int


class Partition(LocalReplica):
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

    def check_readable(self, current_leader_epoch: int) -> None:
        """Raise KafkaError unless consumers may read here: this node leads the partition or follows (KIP-392)."""
        if not self.is_follower or current_leader_epoch not in (-1, self.leader_epoch):
            self.check_leader(current_leader_epoch)

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
            self._accepts_again()
        if not info.duplicate:
            if self.waits_for_disk:
                self._hold_back(info.first_offset)
            self.advance()
            if self.followers is not None:
                self._wake_end()
            elif self._watchers:
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

    # --- following

    def append_as_follower(self, records: Buffer, now_ms: int) -> int:
        """Append the leader's batches as they are and return how many bytes were appended.

        Raise CorruptBatch or UnexpectedBatch if they do not continue this log, KafkaError KAFKA_STORAGE_ERROR if the disk refuses.
        """
        log, start, size = self.log, self.log.log_start, self.log.size
        try:
            if start == log.log_end and len(records) >= HEADER_BYTES:
                self._begin_within_batch(records, start, now_ms)
            log.append_as_follower(records, now_ms)
            if log.log_start < start:
                log.advance_log_start(start)
        except OSError as error:
            self.high_watermark = min(self.high_watermark, log.log_end)
            raise self._refusal(error, len(records)) from error
        if self._is_refusing:
            self._accepts_again()
        return log.size - size

    def _begin_within_batch(self, records: Buffer, start: int, now_ms: int) -> None:
        """Let an empty log begin at the first offset of a batch that spans its start: only whole batches are stored."""
        first = read_header(records)
        if first.base_offset < start <= first.last_offset:
            analyze_follower(records, first.base_offset, UNDEFINED_EPOCH)  # nothing is dropped for a corrupt batch
            self.log.truncate_fully_and_start_at(first.base_offset, now_ms)

    def learn_offsets(self, high_watermark: int, log_start: int, now_ms: int) -> None:
        """Adopt the leader's log start, and its high watermark as far as this log reaches."""
        log = self.log
        try:
            if log.advance_log_start(min(log_start, log.log_end)):
                enforce(log, log.log_start, now_ms)
        except OSError as error:
            if not is_transient(error):
                raise self.fail(error) from error
        reached = max(min(high_watermark, log.log_end), log.log_start)
        if reached > self.high_watermark:
            self.high_watermark = reached
            self._wake()

    def truncate_after_divergence(self, leader: EpochEnd, now_ms: int) -> bool:
        """Drop the records that the leader does not have, and return whether there were any.

        The recovery point must be checkpointed BEFORE the next append.
        """
        own = self.log.end_offset_for_epoch(leader.epoch)
        return self._truncate(truncation_offset(leader, own, self.log.log_end), now_ms)

    def restart_in_range(self, leader_start: int, leader_end: int, now_ms: int) -> bool:
        """Continue within the leader's log after a fetch outside it, and return whether records were dropped."""
        offset, drops_all = restart_offset(leader_start, leader_end, self.log.log_end)
        if not drops_all:
            return self._truncate(offset, now_ms)
        try:
            self.log.truncate_fully_and_start_at(offset, now_ms)
        except OSError as error:
            raise self.fail(error) from error
        self.high_watermark = offset
        return True

    def _truncate(self, offset: int, now_ms: int) -> bool:
        before = self.log.log_end
        try:
            self.log.truncate_to(offset, now_ms)
        except OSError as error:
            raise self.fail(error) from error
        self.high_watermark = min(self.high_watermark, self.log.log_end)
        return self.log.log_end < before

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
        """Plan a consumer's read at `offset`, up to the high watermark or, with `committed_only`, the last stable offset.

        Raise KafkaError OFFSET_OUT_OF_RANGE if `offset` is outside the log.
        """
        bound = self.last_stable_offset if committed_only else self.high_watermark
        plan = self._plan(offset, max_bytes, bound, last_fetched_epoch, min_one=min_one)
        if plan.range is not None:
            self._count_reads(offset)
        return plan

    def _count_reads(self, offset: int) -> None:
        """Count reads in a row at one offset: a consumer may repeat one because what it gets is corrupt."""
        if offset != self._read_offset:
            self._read_offset, self._reads = offset, 1
            return
        self._reads += 1
        if self._reads % SUSPICIOUS_READS == 0:
            self.on_suspicion(offset)

    def plan_replica_read(self, fetch: FollowerFetch, max_bytes: int, *, min_one: bool) -> ReadPlan:
        """Plan a follower's read, which goes up to the log end.

        Raise KafkaError OFFSET_OUT_OF_RANGE if its offset is outside the log, UNKNOWN_LEADER_EPOCH if it is not one of the
        replicas that this leader knows: then the follower's metadata is ahead.
        """
        if self.followers is None or self.followers.get(fetch.replica) is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"broker {fetch.replica} is not a replica of {self.name} in partition epoch {self.partition_epoch}",
            )
        return self._plan(fetch.offset, max_bytes, self.log.log_end, fetch.last_fetched_epoch, min_one=min_one)

    def record_fetch(self, fetch: FollowerFetch, now_ms: int) -> None:
        """Record how far a follower is, after a read was planned for it without finding that its log diverges.

        This may move the high watermark and propose a change of the ISR. Raise KafkaError NOT_LEADER_OR_FOLLOWER if the fetch
        comes from an earlier incarnation of the broker.
        """
        assert self.followers is not None, "`plan_replica_read` has checked that"
        end = self.log.log_end
        if not self.followers.fetched(fetch.replica, fetch.offset, fetch.log_start, fetch.broker_epoch, end, now_ms):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {fetch.replica} has restarted since this fetch")
        follower = self.followers.get(fetch.replica)
        if follower is not None and follower.may_have_found_damage:
            self.on_suspicion(fetch.offset)
        self.review_isr(now_ms)
        self.advance()
        self._starts.advance(self.low_watermark())

    def _plan(self, offset: int, max_bytes: int, bound: int, last_fetched_epoch: int, *, min_one: bool) -> ReadPlan:
        log, stable = self.log, self.last_stable_offset
        if last_fetched_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(last_fetched_epoch)
            if epoch < 0 or end < 0 or offset < log.log_start:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.name} has no records of leader epoch {last_fetched_epoch}"
                )
            if epoch < last_fetched_epoch or end < offset:
                return ReadPlan(None, self.high_watermark, stable, log.log_start, EpochEnd(epoch, end))
        found = log.read(offset, max_bytes, bound, min_one=min_one)
        # A partial first batch is of no use: return nothing and leave the bytes to other partitions.
        incomplete = 0 < found.range.size < found.first_batch_size
        useful = found.range if found.range.size and not incomplete else None
        return ReadPlan(useful, self.high_watermark, stable, log.log_start, incomplete=incomplete)

    def find_offset(
        self, timestamp: int, *, committed_only: bool, for_replica: bool = False
    ) -> TimestampedOffset | None:
        """Return the offset for a special timestamp, or the first record at or after a real one (ListOffsets).

        Return None if that record is not visible to the client. Raise KafkaError OFFSET_NOT_AVAILABLE while this leader does
        not know yet what earlier leaders have committed: the offset could be smaller than one that they returned (KIP-207).
        """
        log = self.log
        bound = self.last_stable_offset if committed_only else self.high_watermark
        if for_replica:
            bound = log.log_end
        is_unsure = self.followers is not None and bound < self.epoch_start
        if timestamp == LATEST:
            if is_unsure:
                raise self._offset_not_available()
            return TimestampedOffset(bound, -1, self.leader_epoch)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return TimestampedOffset(log.log_start, -1, log.epochs.epoch_for(log.log_start))
        if timestamp == LATEST_TIERED:
            return TimestampedOffset(-1, -1, -1)
        if timestamp == EARLIEST_PENDING_UPLOAD:
            return TimestampedOffset(-1, -1, -1)
        found = log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.find_by_timestamp(timestamp)
        if found is not None and found.offset < bound:
            return found
        if is_unsure:
            raise self._offset_not_available()
        return None

    def _offset_not_available(self) -> KafkaError:
        return KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"the high watermark {self.high_watermark} of {self.name} is below the start {self.epoch_start} of its leader epoch",
        )
