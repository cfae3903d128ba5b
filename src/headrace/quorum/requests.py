"""Translates raft's requests into Kafka's, and Kafka's responses into raft's.

Responses come from other nodes and are checked: whatever cannot be meant as a response to the request raises BadResponse.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.ids import METADATA_TOPIC, METADATA_TOPIC_ID, NO_NODE, ZERO_UUID, NodeId, Uuid
from headrace.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from headrace.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from headrace.protocol.messages.vote import VoteRequest, VoteResponse
from headrace.quorum.snapshots import SnapshotId
from headrace.raft import messages as raft
from headrace.raft.log_view import LogPoint
from headrace.raft.voters import Endpoint, ReplicaKey, VoterSet

EPOCH_MAX = 2**31 - 2  # one below the largest int32, so that there is always a next epoch
FETCH_WAIT_MS = 500


class BadResponse(HeadraceError):
    """A node responded with an error for the whole request, or with something that is no response to it."""


class Sender(Struct, frozen=True):
    """What the requests of one node say about itself and its limits."""

    key: ReplicaKey
    cluster_id: str
    endpoints: tuple[Endpoint, ...] = ()
    fetch_bytes_max: int = 1 << 20  # controller.quorum.fetch.max.bytes
    snapshot_bytes_max: int = 1 << 20  # controller.quorum.fetch.snapshot.max.bytes
    fetch_wait_ms: int = FETCH_WAIT_MS  # how long a leader may hold a fetch for which it has nothing new


def encode(request: raft.Request, to: NodeId, sender: Sender, voters: VoterSet, high_watermark: int) -> Any:
    """Return Kafka's request."""
    match request:
        case raft.VoteRequest():
            return _encode_vote(request, to, sender)
        case raft.BeginQuorumEpochRequest():
            return _encode_begin(request, to, sender, voters)
        case raft.EndQuorumEpochRequest():
            return _encode_end(request, sender, voters)
        case raft.FetchRequest():
            return _encode_fetch(request, sender, high_watermark)


def _encode_vote(request: raft.VoteRequest, to: NodeId, sender: Sender) -> VoteRequest:
    partition = VoteRequest.PartitionData(
        replica_epoch=request.epoch,
        replica_id=request.candidate.id,
        replica_directory_id=request.candidate.directory,
        voter_directory_id=ZERO_UUID if request.voter is None else request.voter.directory,
        last_offset_epoch=request.last.epoch,
        last_offset=request.last.offset,
        pre_vote=request.pre_vote,
    )
    topic = VoteRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return VoteRequest(cluster_id=sender.cluster_id, voter_id=to, topics=[topic])


def _encode_begin(
    request: raft.BeginQuorumEpochRequest, to: NodeId, sender: Sender, voters: VoterSet
) -> BeginQuorumEpochRequest:
    partition = BeginQuorumEpochRequest.PartitionData(
        voter_directory_id=_directory(voters, to), leader_id=request.leader, leader_epoch=request.epoch
    )
    endpoint = BeginQuorumEpochRequest.LeaderEndpoint
    return BeginQuorumEpochRequest(
        cluster_id=sender.cluster_id,
        voter_id=to,
        topics=[BeginQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        leader_endpoints=[endpoint(name=name, host=host, port=port) for name, host, port in sender.endpoints],
    )


def _encode_end(request: raft.EndQuorumEpochRequest, sender: Sender, voters: VoterSet) -> EndQuorumEpochRequest:
    candidate = EndQuorumEpochRequest.ReplicaInfo
    partition = EndQuorumEpochRequest.PartitionData(
        leader_id=request.leader,
        leader_epoch=request.epoch,
        preferred_successors=list(request.successors),
        preferred_candidates=[
            candidate(candidate_id=node_id, candidate_directory_id=_directory(voters, node_id))
            for node_id in request.successors
        ],
    )
    endpoint = EndQuorumEpochRequest.LeaderEndpoint
    return EndQuorumEpochRequest(
        cluster_id=sender.cluster_id,
        topics=[EndQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        leader_endpoints=[endpoint(name=name, host=host, port=port) for name, host, port in sender.endpoints],
    )


def _encode_fetch(request: raft.FetchRequest, sender: Sender, high_watermark: int) -> FetchRequest:
    partition = FetchRequest.FetchPartition(
        current_leader_epoch=request.epoch,
        fetch_offset=request.offset,
        last_fetched_epoch=request.last_fetched_epoch,
        partition_max_bytes=sender.fetch_bytes_max,
        replica_directory_id=request.replica.directory,
        high_watermark=high_watermark,
    )
    return FetchRequest(
        cluster_id=sender.cluster_id,
        replica_state=FetchRequest.ReplicaState(replica_id=request.replica.id),
        max_wait_ms=sender.fetch_wait_ms,
        max_bytes=sender.fetch_bytes_max,
        topics=[FetchRequest.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


def encode_snapshot_fetch(snapshot: SnapshotId, position: int, epoch: int, sender: Sender) -> FetchSnapshotRequest:
    partition = FetchSnapshotRequest.PartitionSnapshot(
        current_leader_epoch=epoch,
        snapshot_id=FetchSnapshotRequest.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        position=position,
        replica_directory_id=sender.key.directory,
    )
    return FetchSnapshotRequest(
        cluster_id=sender.cluster_id,
        replica_id=sender.key.id,
        max_bytes=sender.snapshot_bytes_max,
        topics=[FetchSnapshotRequest.TopicSnapshot(name=METADATA_TOPIC, partitions=[partition])],
    )


def _directory(voters: VoterSet, node_id: NodeId) -> Uuid:
    voter = voters.get(node_id)
    return ZERO_UUID if voter is None else voter.key.directory


# --- responses


def decode(response: Any, request: raft.Request, sender: NodeId) -> raft.Response:
    """Return raft's response. Raise BadResponse if there is none in it."""
    _check(response.error_code, sender)
    match response, request:
        case VoteResponse(), raft.VoteRequest():
            return _decode_vote(response, request, sender)
        case FetchResponse(), raft.FetchRequest():
            return _decode_fetch(response, request, sender)
        case ((BeginQuorumEpochResponse() | EndQuorumEpochResponse()), _):
            data: Any = _only([partition for topic in response.topics for partition in topic.partitions], sender)
            epoch, leader = _epoch_and_leader(data.leader_epoch, data.leader_id, sender)
            return raft.EpochResponse(sender, epoch, leader, ErrorCode(data.error_code))
    raise BadResponse(f"node {sender} responded with {type(response).__name__} to {type(request).__name__}")


def _decode_vote(response: VoteResponse, request: raft.VoteRequest, sender: NodeId) -> raft.VoteResponse:
    data = _only([partition for topic in response.topics for partition in topic.partitions], sender)
    epoch, leader = _epoch_and_leader(data.leader_epoch, data.leader_id, sender)
    code = ErrorCode(data.error_code)
    granted = data.vote_granted and code is ErrorCode.NONE
    return raft.VoteResponse(sender, epoch, leader, granted, request.pre_vote, code)


def _decode_fetch(response: FetchResponse, request: raft.FetchRequest, sender: NodeId) -> raft.FetchResponse:
    data = _only([partition for topic in response.responses for partition in topic.partitions], sender)
    epoch, leader = _epoch_and_leader(data.current_leader.leader_epoch, data.current_leader.leader_id, sender)
    diverging, snapshot, records = data.diverging_epoch, data.snapshot_id, data.records
    if records is not None and not isinstance(records, bytes | bytearray | memoryview):
        raise BadResponse(f"node {sender} responded to a fetch with records of an unknown form")
    return raft.FetchResponse(
        sender,
        epoch,
        leader,
        request.offset,
        data.high_watermark,
        diverging=LogPoint(diverging.epoch, diverging.end_offset) if _is_point(diverging) else None,
        snapshot=LogPoint(snapshot.epoch, snapshot.end_offset) if _is_point(snapshot) else None,
        records=bytes(records) if records else None,
        error=ErrorCode(data.error_code),
    )


def _is_point(point: FetchResponse.EpochEndOffset | FetchResponse.SnapshotId) -> bool:
    return point.end_offset >= 0 and 0 <= point.epoch <= EPOCH_MAX


def decode_snapshot_part(response: FetchSnapshotResponse, sender: NodeId) -> FetchSnapshotResponse.PartitionSnapshot:
    """Return the part of the snapshot. Raise BadResponse if the response is an error."""
    _check(response.error_code, sender)
    parts = [partition for topic in response.topics for partition in topic.partitions]
    _only(parts, sender)
    _check(parts[0].error_code, sender)
    return parts[0]


def _check(code: int, sender: NodeId) -> None:
    if code != ErrorCode.NONE:
        raise BadResponse(f"node {sender} responded with {ErrorCode(code).name}")


def _only(partitions: list[Any], sender: NodeId) -> Any:
    if len(partitions) != 1:
        raise BadResponse(f"node {sender} responded with {len(partitions)} partitions instead of one")
    return partitions[0]


def _epoch_and_leader(epoch: int, leader: int, sender: NodeId) -> tuple[int, NodeId]:
    if not 0 <= epoch <= EPOCH_MAX:
        raise BadResponse(f"node {sender} responded with the epoch {epoch}")
    return epoch, NodeId(leader) if leader >= 0 else NO_NODE
