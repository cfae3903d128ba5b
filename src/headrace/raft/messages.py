"""Messages between the replicas of the metadata log, as raft sees them; the shell translates them from and to Kafka's requests.

A request carries a `token` by which the shell finds the connection to reply on. A response names its sender and repeats the epoch and,
if known, the leader: whatever else it says, it tells the receiver of a newer epoch.
"""

from __future__ import annotations

from msgspec import Struct

from headrace.base.errors import ErrorCode
from headrace.base.ids import NodeId
from headrace.raft.log_view import LogPoint
from headrace.raft.voters import ReplicaKey

NO_TOKEN = -1


class VoteRequest(Struct, frozen=True):
    """Asks for a vote or, with `pre_vote`, whether one would be granted. A pre-vote names the sender's current epoch."""

    epoch: int
    candidate: ReplicaKey
    last: LogPoint
    pre_vote: bool
    voter: ReplicaKey | None = None  # whom the candidate believes to ask
    token: int = NO_TOKEN


class VoteResponse(Struct, frozen=True):
    sender: NodeId
    epoch: int
    leader: NodeId
    granted: bool
    pre_vote: bool
    error: ErrorCode = ErrorCode.NONE


class BeginQuorumEpochRequest(Struct, frozen=True):
    """Tells a voter who leads the epoch."""

    epoch: int
    leader: NodeId
    token: int = NO_TOKEN


class EndQuorumEpochRequest(Struct, frozen=True):
    """Tells a voter that the leader of the epoch resigns, and which voters should campaign first."""

    epoch: int
    leader: NodeId
    successors: tuple[NodeId, ...]
    token: int = NO_TOKEN


class EpochResponse(Struct, frozen=True):
    """The response to BeginQuorumEpoch and EndQuorumEpoch."""

    sender: NodeId
    epoch: int
    leader: NodeId
    error: ErrorCode = ErrorCode.NONE


class FetchRequest(Struct, frozen=True):
    """Asks for records from `offset` on. All before it is on the replica's disk."""

    replica: ReplicaKey
    epoch: int
    offset: int
    last_fetched_epoch: int
    token: int = NO_TOKEN


class FetchResponse(Struct, frozen=True):
    """The response to a fetch: records, or why there are none. `offset` repeats the request's."""

    sender: NodeId
    epoch: int
    leader: NodeId
    offset: int = 0
    high_watermark: int = -1  # -1: unknown to the leader
    diverging: LogPoint | None = None
    snapshot: LogPoint | None = None
    records: bytes | None = None
    error: ErrorCode = ErrorCode.NONE


Request = VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest | FetchRequest
Response = VoteResponse | EpochResponse | FetchResponse
Message = Request | Response
