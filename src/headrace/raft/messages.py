"""The commands of RaftNode to its shell, which executes them in order and reports what has become durable."""

from __future__ import annotations

from msgspec import Struct

from headrace.base.ids import NO_NODE, NodeId


class ElectionState(Struct, frozen=True):
    """The state that a voter must never lose: the contents of the quorum-state file."""

    epoch: int = 0
    leader: NodeId = NO_NODE
    voted_for: NodeId = NO_NODE


class PersistElection(Struct, frozen=True):
    """Make the state durable, then call `election_persisted`. No vote counts BEFORE that, not even our own."""

    state: ElectionState


class BecomeLeader(Struct, frozen=True):
    """Write the leader-change record of this epoch as the next record of the log, then call `proposed` for it."""

    epoch: int
    voters: tuple[NodeId, ...]
    granted_by: tuple[NodeId, ...]


class Persist(Struct, frozen=True):
    """Make the log durable up to this end offset, then call `persisted`. The leader counts itself only AFTER that."""

    end_offset: int


class Committed(Struct, frozen=True):
    """Everything below this offset is committed: a majority has it on disk."""

    high_watermark: int


Effect = PersistElection | BecomeLeader | Persist | Committed
