"""Commands of RaftNode to its shell, which executes them in order and reports what has become durable."""

from __future__ import annotations

from msgspec import Struct

from headrace.base.ids import NO_NODE, NodeId
from headrace.raft.log_view import LogPoint
from headrace.raft.messages import Request, Response
from headrace.raft.roles import Role
from headrace.raft.voters import ReplicaKey, VoterSet


class ElectionState(Struct, frozen=True):
    """The state that a voter must never lose: the contents of the quorum-state file."""

    epoch: int = 0
    leader: NodeId = NO_NODE
    voted_for: ReplicaKey | None = None


class PersistElection(Struct, frozen=True):
    """Make the state durable, then call `election_persisted`. No vote counts BEFORE that, not even our own.

    States are persisted in the order of these commands, and each is confirmed.
    """

    state: ElectionState


class Send(Struct, frozen=True):
    """Send a request; the response, if one arrives, goes to `step`."""

    to: NodeId
    request: Request


class Reply(Struct, frozen=True):
    """Respond to the request with this token."""

    token: int
    response: Response


class AppendLeaderChange(Struct, frozen=True):
    """Append the leader-change record of this epoch as the next record of the log, then call `proposed` for it."""

    epoch: int
    voters: VoterSet
    granted_by: tuple[NodeId, ...]


class AppendVoters(Struct, frozen=True):
    """Append a VotersRecord as the next record of the log, then call `proposed` with this set.

    `kraft_version` is the level that begins with this set and gets a record before it; None if the level stays.
    """

    voters: VoterSet
    kraft_version: int | None = None


class AppendFetched(Struct, frozen=True):
    """Append batches of the leader, call `voters_appended` for each voter set in them, then `appended`."""

    records: bytes


class Persist(Struct, frozen=True):
    """Make the log durable up to this end offset, then call `persisted`. It counts for a commit only AFTER that."""

    end_offset: int
    generation: int


class Truncate(Struct, frozen=True):
    """Remove the records from this offset on, before the next command."""

    end_offset: int


class FetchSnapshot(Struct, frozen=True):
    """Fetch this snapshot from the leader, replace the log by it, then call `snapshot_installed`."""

    leader: NodeId
    snapshot: LogPoint


class Committed(Struct, frozen=True):
    """Everything below this offset is committed: a majority has it on disk."""

    high_watermark: int


class RoleChanged(Struct, frozen=True):
    """The node has a new role, epoch or leader."""

    role: Role
    epoch: int
    leader: NodeId


class Rejected(Struct, frozen=True):
    """A message contradicts what is known to be committed; it was ignored, and an operator should know."""

    reason: str


Effect = (
    PersistElection
    | Send
    | Reply
    | AppendLeaderChange
    | AppendVoters
    | AppendFetched
    | Persist
    | Truncate
    | FetchSnapshot
    | Committed
    | RoleChanged
    | Rejected
)
