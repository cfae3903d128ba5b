"""What one partition contributes to a Fetch response: permissions, the read that is planned, and whether the response may wait."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, Protocol

from headrace.base.clock import Clock
from headrace.base.errors import ErrorCode, KafkaError
from headrace.broker.fetching.due_partitions import DuePartitions, Key
from headrace.broker.fetching.fetch_sessions import FetchPlan, SessionPartition
from headrace.metadata.image import Image
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.replication.partition import FollowerFetch, Partition, ReadPlan
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.storage.file_range import FileRange

Data = FetchResponse.PartitionData
EMPTY = b""
READ_COMMITTED = 1
FOLLOWER_READ_VERSION_MIN = 11  # consumers of earlier versions read from the leader only


class Urgency(IntEnum):
    """How long a response may wait that has too few records."""

    NONE = 0  # until there are more, or the request's time is over
    SOON = 1  # a moment: the next records are likely to come first, and carry the news along
    NOW = 2


class PartitionRead(NamedTuple):
    """A partition's part of the response, without its records."""

    data: Data
    range: FileRange | None  # where the records are
    urgency: Urgency


class Wake(NamedTuple):
    """Calls to a request that is parked."""

    now: Callable[[], None]  # an attempt may find records
    soon: Callable[[], None]  # there is news that can wait a moment


class Reads(Protocol):
    """Plans the reads of one request, of a consumer or of a follower."""

    def check_permission(self, topic: str) -> None:
        """Raise KafkaError if the client may not read the topic."""

    def plan(
        self, key: Key, partition: Partition, requested: SessionPartition, bytes_max: int, *, min_one: bool
    ) -> PartitionRead:
        """Plan the read of a partition. Raise KafkaError if it cannot be read; OSError and CorruptData propagate."""

    def watch(self, plan: FetchPlan, partition_of: Callable[[Key], Partition], wake: Wake) -> None:
        """Call back as soon as another attempt may find more."""

    def unwatch(self) -> None: ...

    @property
    def urgency(self) -> Urgency:
        """Return how long the response may wait whatever the partitions have."""


def _nothing() -> None:
    return


NO_WAKE = Wake(_nothing, _nothing)


class ConsumerReads:
    """Up to the high watermark, or to the last stable offset, of a leader or of a follower (KIP-392)."""

    def __init__(
        self, request: FetchRequest, context: RequestContext, image: Callable[[], Image], *, selects_by_rack: bool
    ) -> None:
        self._request = request
        self._context = context
        self._image = image
        self._selects_by_rack = selects_by_rack
        self._watched: list[Partition] = []
        self._wake = NO_WAKE

    def check_permission(self, topic: str) -> None:
        if not self._context.may(Operation.READ, Resource.TOPIC, topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def plan(
        self, key: Key, partition: Partition, requested: SessionPartition, bytes_max: int, *, min_one: bool
    ) -> PartitionRead:
        fetch = requested.fetch
        if self._context.api_version >= FOLLOWER_READ_VERSION_MIN:
            partition.check_readable(fetch.current_leader_epoch)
        else:
            partition.check_leader(fetch.current_leader_epoch)
        committed_only = self._request.isolation_level == READ_COMMITTED
        plan = partition.plan_read(
            fetch.fetch_offset,
            bytes_max,
            committed_only=committed_only,
            last_fetched_epoch=fetch.last_fetched_epoch,
            min_one=min_one,
        )
        data = _data(fetch, plan)
        data.aborted_transactions = [] if committed_only and not plan.incomplete and plan.diverging is None else None
        if plan.diverging is not None:
            return PartitionRead(data, None, Urgency.NOW)
        if self._selects_by_rack and partition.followers is not None:
            preferred = self._preferred_replica(partition, fetch.fetch_offset)
            if preferred is not None:
                data.preferred_read_replica = preferred
                return PartitionRead(data, None, Urgency.NOW)
        if committed_only and plan.range is not None:
            data.aborted_transactions = [
                FetchResponse.AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in partition.log.aborted_transactions(
                    fetch.fetch_offset, plan.last_stable_offset, plan.range
                )
            ]
        return PartitionRead(data, plan.range, Urgency.NONE)

    def _preferred_replica(self, partition: Partition, offset: int) -> int | None:
        """Return the in-sync follower in the consumer's rack that has the offset and the most records, if there is one."""
        rack = self._request.rack_id
        brokers = self._image().brokers
        leader = brokers.get(partition.node_id)
        if not rack or (leader is not None and leader.rack == rack) or partition.followers is None:
            return None
        candidates = [
            (follower.log_end, -replica)
            for replica in partition.isr
            if (follower := partition.followers.get(replica)) is not None
            and follower.log_start <= offset <= follower.log_end
            and (broker := brokers.get(replica)) is not None
            and broker.rack == rack
            and not broker.fenced
        ]
        return -max(candidates)[1] if candidates else None

    def watch(self, plan: FetchPlan, partition_of: Callable[[Key], Partition], wake: Wake) -> None:
        self._wake = wake
        for key in plan.partitions:
            try:
                partition = partition_of(key)
            except KafkaError:
                continue
            partition.watch(wake.now)
            self._watched.append(partition)

    def unwatch(self) -> None:
        for partition in self._watched:
            partition.unwatch(self._wake.now)
        self._watched.clear()

    @property
    def urgency(self) -> Urgency:
        return Urgency.NONE


class ReplicaReads:
    """Up to the log end, for a follower, whose progress the leader records."""

    def __init__(
        self, replica: int, request: FetchRequest, context: RequestContext, clock: Clock, due: DuePartitions | None
    ) -> None:
        """Settle the session's partitions in `due`; a request without a session has None."""
        self._replica = replica
        self._request = request
        self._context = context
        self._clock = clock
        self._due = due
        self._recorded: set[Key] = set()
        self._watched: list[Partition] = []  # without a session
        self._wake = NO_WAKE

    def check_permission(self, topic: str) -> None:
        if not self._context.may(Operation.CLUSTER_ACTION, Resource.CLUSTER):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def plan(
        self, key: Key, partition: Partition, requested: SessionPartition, bytes_max: int, *, min_one: bool
    ) -> PartitionRead:
        fetch = requested.fetch
        partition.check_leader(fetch.current_leader_epoch)
        progress = FollowerFetch(
            self._replica,
            self._request.replica_state.replica_epoch,
            fetch.fetch_offset,
            fetch.log_start_offset,
            fetch.last_fetched_epoch,
        )
        plan = partition.plan_replica_read(progress, bytes_max, min_one=min_one)
        if plan.diverging is None and key not in self._recorded:
            # Recorded once: when a parked fetch is answered, the follower is where it was when it sent the request.
            self._recorded.add(key)
            partition.record_fetch(progress, self._clock.now_ms())
            if plan.high_watermark != partition.high_watermark:
                plan = plan._replace(high_watermark=partition.high_watermark)
        if plan.range is not None and partition.followers is not None:
            partition.followers.sent(self._replica, fetch.fetch_offset)
        data = _data(fetch, plan)
        data.aborted_transactions = None
        if self._due is not None and self._is_quiet(partition, requested, plan):
            self._due.settle(key, partition)
        if plan.diverging is not None or plan.log_start > fetch.log_start_offset:
            return PartitionRead(data, plan.range, Urgency.NOW)
        return PartitionRead(
            data, plan.range, Urgency.SOON if plan.high_watermark > fetch.high_watermark else Urgency.NONE
        )

    def _is_quiet(self, partition: Partition, requested: SessionPartition, plan: ReadPlan) -> bool:
        return (
            plan.range is None
            and plan.diverging is None
            and requested.fetch.fetch_offset >= partition.log.log_end
            and plan.high_watermark == requested.high_watermark
            and plan.log_start == requested.log_start
            and self._replica in partition.isr
        )

    def watch(self, plan: FetchPlan, partition_of: Callable[[Key], Partition], wake: Wake) -> None:
        """Watch the partitions that are still due; the session watches the quiet ones."""
        self._wake = wake
        if self._due is not None:
            self._due.on_news, self._due.on_small_news = wake
        for key in plan.partitions if self._due is None else list(self._due):
            try:
                partition = partition_of(key)
            except KafkaError:
                continue
            partition.watch_end(wake.now)
            self._watched.append(partition)

    def unwatch(self) -> None:
        if self._due is not None and self._due.on_news == self._wake.now:
            self._due.on_news = self._due.on_small_news = None
        for partition in self._watched:
            partition.unwatch(self._wake.now)
        self._watched.clear()

    @property
    def urgency(self) -> Urgency:
        return Urgency.SOON if self._due is not None and self._due.expects_more else Urgency.NONE


def reads_for(
    request: FetchRequest,
    context: RequestContext,
    replica: int,
    plan: FetchPlan,
    image: Callable[[], Image],
    clock: Clock,
    *,
    selects_by_rack: bool,
) -> Reads:
    if replica >= 0:
        return ReplicaReads(replica, request, context, clock, plan.due)
    return ConsumerReads(request, context, image, selects_by_rack=selects_by_rack)


def _data(fetch: FetchRequest.FetchPartition, plan: ReadPlan) -> Data:
    data = Data(
        partition_index=fetch.partition,
        high_watermark=plan.high_watermark,
        last_stable_offset=plan.last_stable_offset,
        log_start_offset=plan.log_start,
        records=EMPTY,
    )
    if plan.diverging is not None:
        epoch, end_offset = plan.diverging
        data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return data
