"""DescribeQuorum 0–2: the leader, and how far the voters and observers are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.api.permissions import DESCRIBE_CLUSTER
from headrace.base.clock import Clock
from headrace.base.errors import ErrorCode
from headrace.base.ids import METADATA_TOPIC, ZERO_UUID, NodeId
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from headrace.quorum.driver import QuorumDriver
from headrace.raft.leader import Progress
from headrace.raft.voters import ReplicaKey
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

OBSERVER_FORGOTTEN_MS = 300_000
DIRECTORIES_VERSION_MIN = 2  # DescribeQuorum version with directory ids and endpoints
_UNKNOWN = "This server does not host this topic-partition."
_NOT_LEADER = "this node does not lead the metadata quorum"

Endpoints = Mapping[str, tuple[str, int]]  # listener -> host and port
ReplicaState = DescribeQuorumResponse.ReplicaState
Partition = DescribeQuorumResponse.PartitionData


class DescribeQuorumApi:
    """Handles DescribeQuorum. `endpoints` returns the addresses of all voters."""

    def __init__(self, driver: QuorumDriver, endpoints: Callable[[], Mapping[NodeId, Endpoints]], clock: Clock) -> None:
        self._driver = driver
        self._endpoints = endpoints
        self._clock = clock

    def services(self) -> list[Service]:
        return [Service(ApiKey.DESCRIBE_QUORUM, (0, 2), self.describe, DESCRIBE_CLUSTER)]

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
            response.nodes = self._nodes()
        return response

    def _nodes(self) -> list[DescribeQuorumResponse.Node]:
        listener = DescribeQuorumResponse.Listener
        return [
            DescribeQuorumResponse.Node(
                node_id=node_id,
                listeners=[listener(name=name, host=host, port=port) for name, (host, port) in endpoints.items()],
            )
            for node_id, endpoints in self._endpoints().items()
        ]

    def _describe(self, topic: str, index: int, directories: bool) -> Partition:
        if topic != METADATA_TOPIC or index != 0:
            return Partition(
                partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message=_UNKNOWN
            )
        raft = self._driver.raft
        if raft.leading is None or not self._driver.is_leader:
            return Partition(
                partition_index=index,
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                error_message=_NOT_LEADER,
                leader_id=raft.leader,
                leader_epoch=raft.epoch,
            )
        progress = raft.leading.progress(raft.voters)
        return Partition(
            partition_index=index,
            leader_id=raft.key.id,
            leader_epoch=raft.epoch,
            high_watermark=raft.high_watermark,
            current_voters=[
                self._own_state(voter.key, directories)
                if voter.key.id == raft.key.id
                else self._state(voter.key, progress.get(voter.key.id, Progress(end_offset=-1)), directories)
                for voter in raft.voters.voters
            ],
            observers=[
                self._state(key, found, directories)
                for key, found in raft.leading.observers(raft.voters).items()
                if self._driver.now_ms() - found.fetched_ms < OBSERVER_FORGOTTEN_MS
            ],
        )

    def _own_state(self, key: ReplicaKey, directories: bool) -> ReplicaState:
        now_ms = self._clock.now_ms()
        return ReplicaState(
            replica_id=key.id,
            replica_directory_id=key.directory if directories else ZERO_UUID,
            log_end_offset=self._driver.log.end_offset,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )

    def _state(self, key: ReplicaKey, progress: Progress, directories: bool) -> ReplicaState:
        return ReplicaState(
            replica_id=key.id,
            replica_directory_id=key.directory if directories else ZERO_UUID,
            log_end_offset=progress.end_offset,
            last_fetch_timestamp=self._wall_ms(progress.fetched_ms),
            last_caught_up_timestamp=self._wall_ms(progress.caught_up_ms),
        )

    def _wall_ms(self, at_ms: int) -> int:
        """Convert a time of the event loop, as raft has it, to the clock's; -1 means never."""
        return -1 if at_ms < 0 else self._clock.now_ms() - (self._driver.now_ms() - at_ms)
