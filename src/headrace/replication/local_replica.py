"""The replica of a partition on this node: its role, the high watermark, and what waits for them.

A leader with followers moves the high watermark to the offset that all in-sync replicas have; a leader without followers moves it
with its log end. A follower learns it from its leader. It never goes back within a leader epoch, and does not move while fewer
replicas are in sync than `min.insync.replicas` (KIP-966). `partition` has the appends and reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NO_NODE, NodeId, TopicPartition, Uuid
from headrace.base.waiters import OffsetWaiters
from headrace.metadata.image import RECOVERED
from headrace.metadata.image import Partition as PartitionState
from headrace.options.table import LONG_MAX
from headrace.replication.batch_checks import BatchChecks
from headrace.replication.isr import Accepted, Isr, Proposal, may_join
from headrace.replication.leader_state import LeaderState
from headrace.replication.traffic import TopicTraffic
from headrace.replication.verification import Guards
from headrace.storage.files import DISK_FULL, free_bytes_needed, is_transient
from headrace.storage.log import Log

if TYPE_CHECKING:
    from headrace.replication.group_commit import Acknowledgement, GroupCommit, Synced

logger = logging.getLogger(__name__)  # `log` is the partition's

ALL_ACKS = -1
ACK_WAIT_MS_MAX = 600_000  # longer timeouts of requests are shortened to this
LAG_MS_MAX = 30_000  # default of replica.lag.time.max.ms


class ReplicationPort:
    """What a leader needs from the rest of the node to change its ISR. This default knows no other broker."""

    lag_ms_max: int = LAG_MS_MAX

    def eligible_epoch(self, broker_id: int) -> int | None:
        """Return the epoch of a broker that may join an ISR; None if it is fenced, shutting down or not registered."""
        return None

    def live_brokers(self) -> Collection[int]:
        return ()

    def propose(self, partition: LocalReplica, proposal: Proposal) -> None:
        """Send a proposal to the controller and report the response to the partition."""


class LocalReplica:
    def __init__(self, name: TopicPartition, topic_id: Uuid, node_id: NodeId, log: Log, high_watermark: int) -> None:
        self.name = name
        self.topic_id = topic_id
        self.node_id = node_id
        self.log = log
        self.high_watermark = min(max(high_watermark, log.log_start), log.log_end)
        self.leader: int = NO_NODE
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.epoch_start = 0  # log end at which this node began to lead
        self.term_began_ms = 0
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()  # as committed by the controller
        self.min_isr = 1
        self.followers: LeaderState | None = None  # None unless this node leads and has followers
        self._in_sync: Isr | None = None  # set together with `followers`
        self._joining: frozenset[int] = frozenset()  # caught-up followers outside the ISR
        self.port = ReplicationPort()
        self.traffic = TopicTraffic()  # shared by the partitions of a topic
        self.guards = Guards()
        self._watchers: dict[Callable[[], None], None] = {}
        self._end_watchers: dict[Callable[[], None], None] = {}
        self._acks = OffsetWaiters()  # producers, which wait for the high watermark to pass an offset
        self._starts = OffsetWaiters()  # deletions, which wait for the low watermark to reach an offset
        self.checks = BatchChecks(log.config)
        self._append_time = False
        self.offline: str | None = None  # the reason, once the disk has failed
        self.waits_for_disk = False  # whether flush.messages is set, so that responses may have to wait (see `flushed`)
        self.defers_responses = False  # whether producers may have to wait for the disk or for followers
        self.commit: GroupCommit | None = None  # set by the owner of the event loop
        self.on_failure: Callable[[OSError], None] = self._go_offline_alone
        self._read_offset, self._reads = -1, 0  # where consumers last read, and how often in a row
        # Called with the offset of records that a follower or consumer was sent and asks for again.
        self.on_suspicion: Callable[[int], None] = lambda offset: None
        self.examined_again_s = 0.0  # time of the event loop before which suspicions are ignored
        self.is_given_up = False  # offline because its log is damaged; a new copy replaces it when others lead
        self._is_refusing = False  # whether the last append failed for lack of disk space, descriptors or memory
        self.free_bytes_needed: int | None = (
            None  # disk space that the last append lacked; None if that was not the problem
        )
        self._held_from: int | None = None  # bound of the high watermark until a sync is done; None if there is none
        self._held_until = 0  # log end that this sync, or the one after it, must reach

    @property
    def is_leader(self) -> bool:
        return self.leader == self.node_id and self.offline is None

    @property
    def is_follower(self) -> bool:
        return self.leader not in (self.node_id, NO_NODE) and self.offline is None

    def configure(self, min_isr: int) -> None:
        """Cache the options that appends need. Call this after the log was configured."""
        config = self.log.config
        self.min_isr = min_isr
        self.checks = BatchChecks(config)
        self.waits_for_disk = self.commit is not None and config.flush_messages < LONG_MAX
        self.defers_responses = self.waits_for_disk or self.followers is not None
        self._append_time = config.message_timestamp_type == "LogAppendTime"

    # --- roles

    def lead(self, assigned: PartitionState, now_ms: int) -> None:
        """Lead the partition, or adopt a new ISR or new replicas while leading it. An older state is ignored."""
        if self._is_outdated(assigned):
            return
        begins = assigned.leader_epoch != self.leader_epoch or self.leader != self.node_id
        self._adopt(assigned)
        if begins:
            if self.leader_epoch > self.log.epochs.latest:
                self.log.assign_epoch(self.leader_epoch, self.log.log_end)
            self.epoch_start = self.log.log_end
            self._begin_term(assigned, now_ms)
        else:
            self._continue_term(assigned, now_ms)
        self.defers_responses = self.waits_for_disk or self.followers is not None
        self.advance()
        if self.followers is None:
            self._acks.advance(self.high_watermark - 1)
        self._starts.advance(self.low_watermark())
        self.review_isr(now_ms)
        if begins:
            # Producers that already wait for an offset go on waiting: their records are still in the log.
            self.guards.clear()
            self._wake_all()

    def follow(self, assigned: PartitionState) -> None:
        """Stop leading: another broker leads, or none. An older state is ignored."""
        if self._is_outdated(assigned):
            return
        changed = (assigned.leader, assigned.leader_epoch) != (self.leader, self.leader_epoch)
        self._adopt(assigned)
        self.followers = self._in_sync = None
        self._joining = frozenset()
        self._held_from = None
        self.defers_responses = self.waits_for_disk
        if changed:
            self.guards.clear()
            elsewhere = f"{self.name} is led by node {assigned.leader} now"
            # Not NOT_LEADER_OR_FOLLOWER for producers: that would mean that nothing was written, but the records may survive.
            self._acks.lose(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, elsewhere))
            self._end_waits(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, elsewhere))

    def retire(self) -> None:
        """Give up the partition for good, because it was deleted or has moved to other brokers."""
        self.follow(PartitionState((), (), NO_NODE, self.leader_epoch + 1, self.partition_epoch + 1))

    def _is_outdated(self, assigned: PartitionState) -> bool:
        known = (self.leader_epoch, self.partition_epoch)
        return self.offline is not None or (assigned.leader_epoch, assigned.partition_epoch) < known

    def _adopt(self, assigned: PartitionState) -> None:
        self.leader, self.leader_epoch = assigned.leader, assigned.leader_epoch
        self.partition_epoch = assigned.partition_epoch
        self.replicas, self.isr = assigned.replicas, assigned.isr

    def _begin_term(self, assigned: PartitionState, now_ms: int) -> None:
        others = self._others()
        self._joining = frozenset()
        self._track_followers(assigned, now_ms)
        # The earlier leader may have lost batches of producers that this log has never seen.
        self.log.producers.must_start_at_zero = bool(others) and self.leader_epoch > 0
        self.term_began_ms = now_ms

    def _continue_term(self, assigned: PartitionState, now_ms: int) -> None:
        others, recovering = self._others(), assigned.leader_recovery_state != RECOVERED
        if self.followers is None or self._in_sync is None or not (others or recovering):
            self._track_followers(assigned, now_ms)
        else:
            self.followers.assign(others)
            self._in_sync.published(assigned.isr, assigned.partition_epoch, recovering=recovering)
            self.isr = self._in_sync.members

    def _track_followers(self, assigned: PartitionState, now_ms: int) -> None:
        """Begin to track the followers; a leader without any does so only until it has reported that it recovered."""
        others, recovering = self._others(), assigned.leader_recovery_state != RECOVERED
        if not others and not recovering:
            self.followers = self._in_sync = None
            return
        self.followers = LeaderState(others, assigned.isr, now_ms)
        self._in_sync = Isr(
            self.node_id, assigned.isr, assigned.leader_epoch, assigned.partition_epoch, recovering=recovering
        )

    def _others(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica != self.node_id)

    # --- the ISR

    def review_isr(self, now_ms: int) -> None:
        """Propose what the followers' progress calls for: to remove those that lag, to add those that have caught up.

        A follower joins only if it would not be removed at once for its lag: one that has every committed record, but does not fetch any
        more, would join and leave in turns.
        """
        followers, in_sync = self.followers, self._in_sync
        if followers is None or in_sync is None:
            return
        port, end = self.port, self.log.log_end
        lagging = followers.lagging(in_sync.members, end, now_ms, port.lag_ms_max)
        joining = []
        caught_up = []
        for replica, follower in followers.outside(in_sync.members):
            epoch = port.eligible_epoch(replica)
            if epoch is not None and follower.is_caught_up(end, now_ms, port.lag_ms_max):
                caught_up.append(replica)
                if may_join(follower, epoch, self.high_watermark, self.epoch_start):
                    joining.append(replica)
        # Wait for caught-up followers: otherwise, while the leader is alone, every append would move the high watermark away
        # from a follower that is about to reach it.
        self._joining = frozenset(caught_up)
        proposal = in_sync.propose(joining, lagging, port.eligible_epoch, now_ms)
        if proposal is not None:
            port.propose(self, proposal)

    def isr_accepted(self, proposal: Proposal, state: Accepted, now_ms: int) -> None:
        if self._in_sync is not None and self._in_sync.accepted(proposal, state):
            self.isr, self.partition_epoch = self._in_sync.members, self._in_sync.partition_epoch
            self.advance()
            self.review_isr(now_ms)

    def isr_refused(self, proposal: Proposal, code: ErrorCode, now_ms: int) -> bool:
        """Return whether the proposal must be sent again."""
        if self._in_sync is None:
            return False
        again = self._in_sync.refused(proposal, code, now_ms)
        self.advance()
        return again

    @property
    def pending_isr(self) -> Proposal | None:
        return None if self._in_sync is None else self._in_sync.pending

    # --- the high watermark

    def advance(self) -> None:
        """Move the high watermark of a leader to what all in-sync replicas have."""
        if len(self.isr) >= self.min_isr:
            end = self.log.log_end if self._held_from is None else max(self.high_watermark, self._held_from)
            if self.followers is None:
                self.high_watermark = end
            else:
                self._advance_replicated(end)

    def _advance_replicated(self, own_end: int) -> None:
        assert self.followers is not None and self._in_sync is not None
        end = self.followers.replicated_end(own_end, self._in_sync.maximal)
        if self._joining:
            end = self.followers.replicated_end(end, self._joining)
        if end > self.high_watermark:
            self.high_watermark = end
            self._acks.advance(end - 1)
            self._wake()

    def acknowledged(
        self, offset: int, acks: int = ALL_ACKS, timeout_ms: int = ACK_WAIT_MS_MAX
    ) -> Acknowledgement | None:
        """Return None if an append with this last offset may be acknowledged now, or what to wait for.

        Its result is the error for the producer, or None. It may be shared: shield it.
        """
        if acks != ALL_ACKS or self.followers is None:
            return self.flushed(offset) if self.waits_for_disk else None
        if offset < self.high_watermark:
            return None
        return self._wait_for(self._acks, offset, timeout_ms, self._too_few_replicas)

    def low_watermark(self) -> int:
        """Return the offset below which no live replica has records any more."""
        if self.followers is None:
            return self.log.log_start
        return self.followers.low_watermark(self.log.log_start, self.port.live_brokers())

    def deleted(self, offset: int, timeout_ms: int) -> Acknowledgement | None:
        """Return None if no live replica has records below `offset`, or what to wait for, as `acknowledged` does."""
        if self.low_watermark() >= offset:
            return None
        return self._wait_for(self._starts, offset, timeout_ms, lambda: None)

    def _wait_for(
        self, waiters: OffsetWaiters, offset: int, timeout_ms: int, result: Callable[[], KafkaError | None]
    ) -> Acknowledgement:
        assert self.commit is not None
        done = self.commit.create_wait(min(max(timeout_ms, 0), ACK_WAIT_MS_MAX) / 1000)

        def passed() -> None:
            if not done.done():
                done.set_result(result())

        def lost(reason: Exception) -> None:
            assert isinstance(reason, KafkaError)
            if not done.done():
                done.set_result(reason)

        waiter = waiters.add(offset, passed, lost)
        done.add_done_callback(lambda _: waiters.cancel(waiter))
        return done

    def _too_few_replicas(self) -> KafkaError | None:
        if len(self.isr) >= self.min_isr:
            return None
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, f"{self.name} has {len(self.isr)} in-sync replicas"
        )

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
        """Return None if everything up to this offset is on disk as far as `flush.messages` requires, or the sync to wait for.

        The result of the sync may be an error.
        """
        if self._held_from is None or offset < self._held_from:
            return None
        assert self.commit is not None
        return self.commit.under_way or self.commit.sync()

    def unsynced(self) -> Synced | None:
        """Return the sync that a follower must wait for before it fetches again, which tells its leader that it has the records."""
        if not self.waits_for_disk or self.log.log_end - self.log.recovery_point < self.log.config.flush_messages:
            return None
        assert self.commit is not None
        return self.commit.under_way or self.commit.sync()

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

    def _accepts_again(self) -> None:
        self._is_refusing, self.free_bytes_needed = False, None
        logger.warning("%s accepts records again", self.name)

    def fail(self, error: OSError) -> KafkaError:
        """Take the whole directory offline after a disk error, and return the error for the client.

        Writes to the directory can no longer be trusted. The node continues with its other directories.
        """
        self.on_failure(error)
        if self.offline is None:  # directories are no longer tracked: the node is closing
            self._go_offline_alone(error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline or "")

    def go_offline(self, why: str) -> None:
        self.leader = NO_NODE
        self.followers = self._in_sync = None
        self.offline = f"{self.name} is offline: {why}"
        closed = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)
        if self.commit is not None:
            self.commit.closed = closed
        self._end_waits(closed)

    def _go_offline_alone(self, error: OSError) -> None:
        self.go_offline(error.strerror or str(error))

    # --- watching

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as soon as the high watermark has moved or the response to a consumer may differ."""
        self._watchers[wake] = None

    def watch_end(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as soon as records were appended or the response to a follower may differ."""
        self._watchers[wake] = None
        self._end_watchers[wake] = None

    def watch_appends(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as soon as records were appended or the role has changed."""
        self._end_watchers[wake] = None

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._watchers.pop(wake, None)
        self._end_watchers.pop(wake, None)

    def _wake(self) -> None:
        watchers, self._watchers = self._watchers, {}
        for wake in watchers:
            wake()

    def _wake_end(self) -> None:
        watchers, self._end_watchers = self._end_watchers, {}
        for wake in watchers:
            wake()

    def _end_waits(self, reason: KafkaError) -> None:
        self._acks.lose(reason)
        self._starts.lose(reason)
        self._wake_all()

    def _wake_all(self) -> None:
        self._wake()
        self._wake_end()
