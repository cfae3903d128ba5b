"""FetchSnapshot 0–1: reads byte ranges of the leader's snapshots of the metadata log."""

from __future__ import annotations

import asyncio

from headrace.api.controller.quorum.membership import QuorumMembership
from headrace.api.permissions import CLUSTER_ACTION
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from headrace.quorum.snapshots import SnapshotFiles, SnapshotId
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

PART_BYTES_MAX = 8 << 20


class FetchSnapshotApi:
    def __init__(self, membership: QuorumMembership, snapshots: SnapshotFiles, loop: asyncio.AbstractEventLoop) -> None:
        self._membership = membership
        self._driver = membership.driver
        self._snapshots = snapshots
        self._loop = loop

    def services(self) -> list[Service]:
        return [Service(ApiKey.FETCH_SNAPSHOT, (0, 1), self.fetch_snapshot, CLUSTER_ACTION)]

    async def fetch_snapshot(self, context: RequestContext, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        try:
            self._membership.check_cluster(request.cluster_id)
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
                leader_id=self._driver.leader, leader_epoch=self._driver.raft.epoch
            ),
            position=requested.position,
        )
        try:
            if topic.name != METADATA_TOPIC or requested.partition != 0:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self._check_epoch(requested.current_leader_epoch)
            await self._read(requested, request.max_bytes, data)
        except KafkaError as error:
            data.error_code = error.code
        except FileNotFoundError:  # it was deleted meanwhile, because there is a newer one
            data.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
        except OSError:
            data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return FetchSnapshotResponse(
            topics=[FetchSnapshotResponse.TopicSnapshot(name=topic.name, partitions=[data])],
            node_endpoints=[
                FetchSnapshotResponse.NodeEndpoint(node_id=node_id, host=host, port=port)
                for node_id, host, port in self._membership.leader_endpoints(context.peer.listener)
            ],
        )

    def _check_epoch(self, epoch: int) -> None:
        """Raise KafkaError unless this node leads, in the epoch that the replica knows; a negative epoch means any."""
        if 0 <= epoch != self._driver.raft.epoch:
            is_older = epoch < self._driver.raft.epoch
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not self._driver.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def _read(
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
        size = max(1, min(max_bytes, PART_BYTES_MAX))
        data.unaligned_records = await self._loop.run_in_executor(
            None, self._snapshots.read_range, snapshot, requested.position, size
        )
