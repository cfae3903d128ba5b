"""Elections of the quorum: Vote 0–2, BeginQuorumEpoch 0–1 and EndQuorumEpoch 0–1."""

from __future__ import annotations

from headrace.api.controller.quorum.membership import QuorumMembership, only_partition
from headrace.api.permissions import CLUSTER_ACTION
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC, NodeId, Uuid
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from headrace.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from headrace.protocol.messages.vote import VoteRequest, VoteResponse
from headrace.raft import messages as raft
from headrace.raft.log_view import LogPoint
from headrace.raft.voters import ReplicaKey
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

SUCCESSORS_MAX = 1000  # preferred successors in one request; more than any quorum has voters


class VotesApi:
    def __init__(self, membership: QuorumMembership) -> None:
        self._membership = membership
        self._driver = membership.driver

    def services(self) -> list[Service]:
        return [
            Service(ApiKey.VOTE, (0, 2), self.vote, CLUSTER_ACTION),
            Service(ApiKey.BEGIN_QUORUM_EPOCH, (0, 1), self.begin_epoch, CLUSTER_ACTION),
            Service(ApiKey.END_QUORUM_EPOCH, (0, 1), self.end_epoch, CLUSTER_ACTION),
        ]

    async def vote(self, context: RequestContext, request: VoteRequest) -> VoteResponse:
        """Respond once the vote, if it is granted, is on disk."""
        try:
            self._membership.check_cluster(request.cluster_id)
            requested = only_partition([(topic.topic_name, topic.partitions) for topic in request.topics])
        except KafkaError as error:
            return VoteResponse(error_code=error.code)
        try:
            found = await self._vote(request.voter_id, requested)
        except KafkaError as error:
            state = self._driver.raft
            found = raft.VoteResponse(state.key.id, state.epoch, state.leader, False, requested.pre_vote, error.code)
        data = VoteResponse.PartitionData(
            error_code=found.error, leader_id=found.leader, leader_epoch=found.epoch, vote_granted=found.granted
        )
        return VoteResponse(
            topics=[VoteResponse.TopicData(topic_name=METADATA_TOPIC, partitions=[data])],
            node_endpoints=[
                VoteResponse.NodeEndpoint(node_id=node_id, host=host, port=port)
                for node_id, host, port in self._membership.leader_endpoints(context.peer.listener)
            ],
        )

    async def _vote(self, voter_id: int, requested: VoteRequest.PartitionData) -> raft.VoteResponse:
        self._membership.check_receiver(voter_id)
        self._membership.check_voter(requested.replica_id, requested.replica_epoch)
        last = LogPoint(requested.last_offset_epoch, requested.last_offset)
        # A candidate has begun a new epoch, of which no log can have records yet; a prospective one has not.
        epoch_max = requested.replica_epoch if requested.pre_vote else requested.replica_epoch - 1
        if last.offset < 0 or not 0 <= last.epoch <= epoch_max:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        voter = ReplicaKey(NodeId(voter_id), Uuid(requested.voter_directory_id)) if voter_id >= 0 else None
        response = await self._driver.ask(
            raft.VoteRequest(
                requested.replica_epoch,
                ReplicaKey(NodeId(requested.replica_id), Uuid(requested.replica_directory_id)),
                last,
                requested.pre_vote,
                voter,
            )
        )
        assert isinstance(response, raft.VoteResponse)
        return response

    async def begin_epoch(self, context: RequestContext, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        try:
            self._membership.check_cluster(request.cluster_id)
            requested = only_partition([(topic.topic_name, topic.partitions) for topic in request.topics])
        except KafkaError as error:
            return BeginQuorumEpochResponse(error_code=error.code)
        try:
            self._membership.check_receiver(request.voter_id)
            self._membership.check_voter(requested.leader_id, requested.leader_epoch)
            found = await self._ask(raft.BeginQuorumEpochRequest(requested.leader_epoch, NodeId(requested.leader_id)))
        except KafkaError as error:
            found = self._refusal(error.code)
        data = BeginQuorumEpochResponse.PartitionData(
            error_code=found.error, leader_id=found.leader, leader_epoch=found.epoch
        )
        return BeginQuorumEpochResponse(
            topics=[BeginQuorumEpochResponse.TopicData(topic_name=METADATA_TOPIC, partitions=[data])],
            node_endpoints=[
                BeginQuorumEpochResponse.NodeEndpoint(node_id=node_id, host=host, port=port)
                for node_id, host, port in self._membership.leader_endpoints(context.peer.listener)
            ],
        )

    async def end_epoch(self, context: RequestContext, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        try:
            self._membership.check_cluster(request.cluster_id)
            requested = only_partition([(topic.topic_name, topic.partitions) for topic in request.topics])
        except KafkaError as error:
            return EndQuorumEpochResponse(error_code=error.code)
        try:
            self._membership.check_voter(requested.leader_id, requested.leader_epoch)
            found = await self._ask(
                raft.EndQuorumEpochRequest(requested.leader_epoch, NodeId(requested.leader_id), _successors(requested))
            )
        except KafkaError as error:
            found = self._refusal(error.code)
        data = EndQuorumEpochResponse.PartitionData(
            error_code=found.error, leader_id=found.leader, leader_epoch=found.epoch
        )
        return EndQuorumEpochResponse(
            topics=[EndQuorumEpochResponse.TopicData(topic_name=METADATA_TOPIC, partitions=[data])],
            node_endpoints=[
                EndQuorumEpochResponse.NodeEndpoint(node_id=node_id, host=host, port=port)
                for node_id, host, port in self._membership.leader_endpoints(context.peer.listener)
            ],
        )

    async def _ask(self, request: raft.BeginQuorumEpochRequest | raft.EndQuorumEpochRequest) -> raft.EpochResponse:
        response = await self._driver.ask(request)
        assert isinstance(response, raft.EpochResponse)
        return response

    def _refusal(self, code: ErrorCode) -> raft.EpochResponse:
        state = self._driver.raft
        return raft.EpochResponse(state.key.id, state.epoch, state.leader, code)


def _successors(requested: EndQuorumEpochRequest.PartitionData) -> tuple[NodeId, ...]:
    """Return the preferred successors, which version 1 names with their directories."""
    ids = [one.candidate_id for one in requested.preferred_candidates] or requested.preferred_successors
    if len(ids) > SUCCESSORS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return tuple(map(NodeId, ids))
