"""Requests to the metadata quorum: its log (Fetch), snapshots (FetchSnapshot 0–1) and members (DescribeQuorum 0–2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headrace.api.permissions import CLUSTER_ACTION, DESCRIBE_CLUSTER
from headrace.base.clock import Clock
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC, METADATA_TOPIC_ID, ZERO_UUID, Uuid
from headrace.base.waiters import OffsetWaiters
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from headrace.quorum.driver import QuorumDriver
from headrace.quorum.snapshots import SnapshotFiles, SnapshotId
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

WAIT_MS_MAX = 500
FETCH_BYTES_MAX = 8 << 20
OBSERVER_FORGOTTEN_MS = 300_000
OBSERVERS_MAX = 1_000
DIRECTORIES_VERSION_MIN = 2  # DescribeQuorum version with directory ids and endpoints
_UNKNOWN = "This server does not host this topic-partition."

Endpoints = Mapping[str, tuple[str, int]]  # listener -> host and port
ReplicaState = DescribeQuorumResponse.ReplicaState


class Observer(NamedTuple):
    directory_id: Uuid
    end_offset: int
    fetched_ms: int
    caught_up_ms: int


class QuorumApi:
    """Handlers of requests to the metadata quorum.

    `directory_id` identifies this voter together with its node id; it is zero in a quorum of static voters.
    """

    def __init__(
        self,
        driver: QuorumDriver,
        snapshots: SnapshotFiles,
        cluster_id: str,
        directory_id: Callable[[], Uuid],
        endpoints: Callable[[], Endpoints],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._driver = driver
        self._snapshots = snapshots
        self._cluster_id = cluster_id
        self._directory_id = directory_id
        self._endpoints = endpoints
        self._clock = clock
        self._loop = loop
        self._waiters = OffsetWaiters()
        self._observers: dict[int, Observer] = {}
        driver.on_committed(self._waiters.advance)

    def services(self) -> list[Service]:
        return [
            # Only versions with topic ids, by which observers of the quorum name the metadata log.
            Service(ApiKey.FETCH, (13, 18), self.fetch, CLUSTER_ACTION, metric_name="FetchFollower"),
            Service(ApiKey.FETCH_SNAPSHOT, (0, 1), self.fetch_snapshot, CLUSTER_ACTION),
            Service(ApiKey.DESCRIBE_QUORUM, (0, 2), self.describe, DESCRIBE_CLUSTER),
        ]

    # --- the log

    async def fetch(self, context: RequestContext, request: FetchRequest) -> FetchResponse:
        """Return committed batches from an offset on to an observer of the quorum.

        If there are none, wait for more. An observer that must start elsewhere gets a snapshot id or a diverging epoch.
        """
        try:
            requested = self._check_fetch(request)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        snapshot, diverging = self._start_elsewhere(requested)
        if snapshot is None and diverging is None:
            self._note(request.replica_state.replica_id, requested)
            if requested.fetch_offset >= self._driver.high_watermark and request.max_wait_ms > 0:
                await self._more_than(requested.fetch_offset, min(request.max_wait_ms, WAIT_MS_MAX) / 1000)
        high_watermark = self._driver.high_watermark
        data = FetchResponse.PartitionData(
            high_watermark=high_watermark,
            last_stable_offset=high_watermark,
            log_start_offset=self._driver.log.log.log_start,
            current_leader=FetchResponse.LeaderIdAndEpoch(
                leader_id=self._driver.raft.key.id, leader_epoch=self._driver.raft.epoch
            ),
            aborted_transactions=None,
            records=b"",
        )
        if snapshot is not None:
            data.snapshot_id = FetchResponse.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch)
        elif diverging is not None:
            data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
        elif self._driver.log.log.log_start <= requested.fetch_offset < high_watermark:
            size = max(1, min(requested.partition_max_bytes, FETCH_BYTES_MAX))
            data.records = self._driver.log.read_bytes(requested.fetch_offset, high_watermark, size)
        topic = FetchResponse.FetchableTopicResponse(topic_id=METADATA_TOPIC_ID, partitions=[data])
        return FetchResponse(responses=[topic])

    def _check_fetch(self, request: FetchRequest) -> FetchRequest.FetchPartition:
        self._check_member(request.cluster_id)
        if (
            len(request.topics) != 1
            or len(request.topics[0].partitions) != 1
            or request.topics[0].topic_id != METADATA_TOPIC_ID
        ):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        requested = request.topics[0].partitions[0]
        if requested.partition != 0 or requested.fetch_offset < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return requested

    def _check_member(self, cluster_id: str | None) -> None:
        if cluster_id is not None and cluster_id != self._cluster_id:
            raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)
        if not self._driver.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _start_elsewhere(
        self, requested: FetchRequest.FetchPartition
    ) -> tuple[SnapshotId | None, tuple[int, int] | None]:
        """Return where the observer has to start instead, or (None, None) if it can continue.

        It starts with a snapshot, or at the end of the last epoch that both logs have in common.
        """
        log, newest = self._driver.log.log, self._snapshots.newest
        is_new = requested.fetch_offset == 0 and requested.last_fetched_epoch <= 0
        if newest is not None and newest.end_offset > 0:
            if is_new or requested.fetch_offset < log.log_start:
                return newest, None
            if SnapshotId(requested.fetch_offset, requested.last_fetched_epoch) in self._snapshots.ids:
                return None, None  # it has just loaded this snapshot, whose records the log may no longer have
            if requested.last_fetched_epoch < self._snapshots.ids[0].epoch:
                return newest, None
        if is_new:
            return None, None
        epoch, end = log.end_offset_for_epoch(requested.last_fetched_epoch)
        if epoch != requested.last_fetched_epoch or end < requested.fetch_offset:
            return None, (max(epoch, 0), max(end, log.log_start))
        return None, None

    async def _more_than(self, offset: int, wait_s: float) -> None:
        future: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        waiter = self._waiters.add(offset + 1, wake, lambda error: wake())
        timer = self._loop.call_later(wait_s, wake)
        try:
            await future
        finally:
            self._waiters.cancel(waiter)
            timer.cancel()

    def _note(self, replica_id: int, requested: FetchRequest.FetchPartition) -> None:
        if replica_id < 0 or replica_id in self._driver.raft.voters.ids:
            return
        now_ms, old = self._clock.now_ms(), self._observers.pop(replica_id, None)
        caught_up = requested.fetch_offset >= self._driver.log.end_offset
        while len(self._observers) >= OBSERVERS_MAX:
            del self._observers[next(iter(self._observers))]  # the one that has not fetched for the longest time
        self._observers[replica_id] = Observer(
            Uuid(requested.replica_directory_id),
            requested.fetch_offset,
            now_ms,
            now_ms if caught_up or old is None else old.caught_up_ms,
        )

    # --- snapshots

    async def fetch_snapshot(self, context: RequestContext, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        try:
            self._check_member(request.cluster_id)
            if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
        except KafkaError as error:
            return FetchSnapshotResponse(error_code=error.code)
        topic = request.topics[0]
        requested = topic.partitions[0]
        data = FetchSnapshotResponse.PartitionSnapshot(
            index=requested.partition,
            snapshot_id=FetchSnapshotResponse.SnapshotId(
                end_offset=requested.snapshot_id.end_offset, epoch=requested.snapshot_id.epoch
            ),
            current_leader=FetchSnapshotResponse.LeaderIdAndEpoch(
                leader_id=self._driver.raft.key.id, leader_epoch=self._driver.raft.epoch
            ),
            position=requested.position,
        )
        try:
            if topic.name != METADATA_TOPIC or requested.partition != 0:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self._check_epoch(requested.current_leader_epoch)
            await self._read_snapshot(requested, request.max_bytes, data)
        except KafkaError as error:
            data.error_code = error.code
        except OSError:
            data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return FetchSnapshotResponse(topics=[FetchSnapshotResponse.TopicSnapshot(name=topic.name, partitions=[data])])

    def _check_epoch(self, epoch: int) -> None:
        if epoch >= 0 and epoch != self._driver.raft.epoch:
            older = epoch < self._driver.raft.epoch
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)

    async def _read_snapshot(
        self,
        requested: FetchSnapshotRequest.PartitionSnapshot,
        max_bytes: int,
        data: FetchSnapshotResponse.PartitionSnapshot,
    ) -> None:
        snapshot = SnapshotId(requested.snapshot_id.end_offset, requested.snapshot_id.epoch)
        if snapshot not in self._snapshots.ids:
            raise KafkaError(ErrorCode.SNAPSHOT_NOT_FOUND)
        data.size = await self._loop.run_in_executor(None, self._snapshots.size, snapshot)
        if not 0 <= requested.position < data.size:
            raise KafkaError(ErrorCode.POSITION_OUT_OF_RANGE)
        size = max(1, min(max_bytes, FETCH_BYTES_MAX))
        data.unaligned_records = await self._loop.run_in_executor(
            None, self._snapshots.read_range, snapshot, requested.position, size
        )

    # --- members

    def describe(self, context: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        response = DescribeQuorumResponse()
        directories = context.api_version >= DIRECTORIES_VERSION_MIN
        for topic in request.topics:
            partitions = [
                self._describe(topic.topic_name, requested.partition_index, directories)
                for requested in topic.partitions
            ]
            response.topics.append(DescribeQuorumResponse.TopicData(topic_name=topic.topic_name, partitions=partitions))
        if directories and any(
            partition.error_code == ErrorCode.NONE for topic in response.topics for partition in topic.partitions
        ):
            listener = DescribeQuorumResponse.Listener
            response.nodes = [
                DescribeQuorumResponse.Node(
                    node_id=self._driver.raft.key.id,
                    listeners=[
                        listener(name=name, host=host, port=port) for name, (host, port) in self._endpoints().items()
                    ],
                )
            ]
        return response

    def _describe(self, topic: str, index: int, directories: bool) -> DescribeQuorumResponse.PartitionData:
        data = DescribeQuorumResponse.PartitionData(partition_index=index)
        if topic != METADATA_TOPIC or index != 0:
            data.error_code, data.error_message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN
            return data
        now_ms, raft = self._clock.now_ms(), self._driver.raft
        data.leader_id, data.leader_epoch, data.high_watermark = raft.key.id, raft.epoch, raft.high_watermark
        data.current_voters = [
            ReplicaState(
                replica_id=raft.key.id,
                replica_directory_id=self._directory_id() if directories else ZERO_UUID,
                log_end_offset=self._driver.log.end_offset,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
        ]
        data.observers = [
            ReplicaState(
                replica_id=replica_id,
                replica_directory_id=observer.directory_id if directories else ZERO_UUID,
                log_end_offset=observer.end_offset,
                last_fetch_timestamp=observer.fetched_ms,
                last_caught_up_timestamp=observer.caught_up_ms,
            )
            for replica_id, observer in self._observers.items()
            if now_ms - observer.fetched_ms < OBSERVER_FORGOTTEN_MS
        ]
        return data
