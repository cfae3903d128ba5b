"""Fetch on the metadata log: voters read everything, observers what is committed."""

from __future__ import annotations

import asyncio

from headrace.api.controller.quorum.membership import QuorumMembership
from headrace.api.permissions import CLUSTER_ACTION
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC_ID, NO_NODE, NodeId, Uuid
from headrace.base.waiters import OffsetWaiters
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.quorum.requests import EPOCH_MAX, FETCH_WAIT_MS
from headrace.raft import messages as raft
from headrace.raft.voters import ReplicaKey
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

FETCH_BYTES_MAX = 8 << 20
REPLICA_STATE_VERSION_MIN = 15  # Fetch version with `replica_state` instead of `replica_id`


class QuorumFetchApi:
    """Handles Fetch. A fetch for which there is nothing new is held until there is, or until its time is over."""

    def __init__(self, membership: QuorumMembership, loop: asyncio.AbstractEventLoop) -> None:
        self._membership = membership
        self._driver = membership.driver
        self._loop = loop
        self._appended = OffsetWaiters()  # voters wait for the log end to pass an offset
        self._committed = OffsetWaiters()  # … and all replicas for the high watermark to do so
        self._driver.on_appended(self._appended.advance)
        self._driver.on_committed(self._committed.advance)
        self._driver.on_role(self._role_changed)

    def services(self) -> list[Service]:
        return [
            # Only versions with topic ids, by which replicas name the metadata log.
            Service(ApiKey.FETCH, (13, 18), self.fetch, CLUSTER_ACTION, metric_name="FetchFollower"),
        ]

    def _role_changed(self) -> None:
        """Respond to all held fetches: who leads is news."""
        reason = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._appended.lose(reason)
        self._committed.lose(reason)

    async def fetch(self, context: RequestContext, request: FetchRequest) -> FetchResponse:
        try:
            self._membership.check_cluster(request.cluster_id)
            requested = _only_partition(request)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        replica_id = request.replica_state.replica_id
        if context.api_version < REPLICA_STATE_VERSION_MIN:
            replica_id = request.replica_id
        message = self._raft_request(replica_id, requested)
        try:
            found = await self._driver.ask(message)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        assert isinstance(found, raft.FetchResponse)
        if found.error is not ErrorCode.NONE or found.diverging is not None or found.snapshot is not None:
            return self._response(found, b"", context)
        end = self._readable_end(message.replica)
        if (
            message.offset >= end
            and requested.high_watermark >= self._driver.high_watermark
            and request.max_wait_ms > 0
        ):
            wait_s = min(request.max_wait_ms, FETCH_WAIT_MS) / 1000
            await self._news(message, requested.high_watermark, wait_s)
        return self._read(message, requested.partition_max_bytes, context)

    def _raft_request(self, replica_id: int, requested: FetchRequest.FetchPartition) -> raft.FetchRequest:
        """Return raft's request.

        Only a replica that knows the epoch may be a voter. A fetch without one reads the log but vouches for nothing: the
        broker of a combined node has the id of a voter, but not its disk.
        """
        epoch, node_id = requested.current_leader_epoch, NodeId(max(replica_id, NO_NODE))
        if epoch < 0:
            epoch = self._driver.raft.epoch
            if self._driver.raft.voters.get(node_id) is not None:
                node_id = NO_NODE
        last_epoch = requested.last_fetched_epoch
        return raft.FetchRequest(
            ReplicaKey(node_id, Uuid(requested.replica_directory_id)),
            min(epoch, EPOCH_MAX),
            requested.fetch_offset,
            0 if requested.fetch_offset == 0 and last_epoch < 0 else last_epoch,
        )

    def _readable_end(self, replica: ReplicaKey) -> int:
        is_voter = replica.id >= 0 and replica in self._driver.raft.voters
        return self._driver.log.end_offset if is_voter else self._driver.high_watermark

    async def _news(self, message: raft.FetchRequest, known_high_watermark: int, wait_s: float) -> None:
        """Wait until there are records for this replica, the high watermark has moved, or another node leads."""
        future: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        is_voter = message.replica.id >= 0 and message.replica in self._driver.raft.voters
        records = self._appended if is_voter else self._committed
        waiters = [
            (records, records.add(message.offset + 1, wake, lambda error: wake())),
            (self._committed, self._committed.add(known_high_watermark + 1, wake, lambda error: wake())),
        ]
        timer = self._loop.call_later(wait_s, wake)
        try:
            await future
        finally:
            timer.cancel()
            for where, waiter in waiters:
                where.cancel(waiter)

    def _read(self, message: raft.FetchRequest, max_bytes: int, context: RequestContext) -> FetchResponse:
        state, records, code = self._driver.raft, b"", ErrorCode.NONE
        if not self._driver.is_leader or state.epoch != message.epoch:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif message.offset < self._readable_end(message.replica):
            size = max(1, min(max_bytes, FETCH_BYTES_MAX))
            records = self._driver.log.read_bytes(message.offset, self._readable_end(message.replica), size)
        found = raft.FetchResponse(
            state.key.id, state.epoch, state.leader, message.offset, self._driver.high_watermark, error=code
        )
        return self._response(found, records, context)

    def _response(self, found: raft.FetchResponse, records: bytes, context: RequestContext) -> FetchResponse:
        data = FetchResponse.PartitionData(
            error_code=found.error,
            high_watermark=found.high_watermark,
            last_stable_offset=found.high_watermark,
            log_start_offset=self._driver.log.log.log_start,
            current_leader=FetchResponse.LeaderIdAndEpoch(leader_id=found.leader, leader_epoch=found.epoch),
            aborted_transactions=None,
            records=records,
        )
        if found.snapshot is not None:
            epoch, end_offset = found.snapshot
            data.snapshot_id = FetchResponse.SnapshotId(end_offset=end_offset, epoch=epoch)
        elif found.diverging is not None:
            epoch, end_offset = found.diverging
            data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
        topic = FetchResponse.FetchableTopicResponse(topic_id=METADATA_TOPIC_ID, partitions=[data])
        response = FetchResponse(responses=[topic])
        if found.error is not ErrorCode.NONE:
            response.node_endpoints = [
                FetchResponse.NodeEndpoint(node_id=node_id, host=host, port=port)
                for node_id, host, port in self._membership.leader_endpoints(context.peer.listener)
            ]
        return response


def _only_partition(request: FetchRequest) -> FetchRequest.FetchPartition:
    """Return the one partition of the request. Raise KafkaError INVALID_REQUEST unless it is that of the metadata log."""
    topics = request.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1 or topics[0].topic_id != METADATA_TOPIC_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    requested = topics[0].partitions[0]
    if requested.partition != 0 or requested.fetch_offset < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return requested
