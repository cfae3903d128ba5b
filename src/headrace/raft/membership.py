"""Voter sets by log offset, and changes of the set (KIP-853).

A voter set applies as soon as it is written to the log, committed or not, and is undone if its record is truncated. Two sets that follow
each other differ in one voter, so any majority of one shares a voter with any majority of the other; this is why a second change must
wait until the first is committed.
"""

from __future__ import annotations

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NodeId
from headrace.raft.voters import ReplicaKey, Voter, VoterSet

DYNAMIC_KRAFT_VERSION = 1  # from this level of kraft.version on, the voters are in the log


class VoterHistory:
    """The voter sets of the log, and the configured one, which applies as long as the log has none."""

    def __init__(self, configured: VoterSet) -> None:
        self._configured = configured
        self._sets: list[tuple[int, VoterSet]] = []  # offset of the VotersRecord and its set, ascending

    @property
    def current(self) -> VoterSet:
        return self._sets[-1][1] if self._sets else self._configured

    @property
    def kraft_version(self) -> int:
        """Return the level of kraft.version: the log has voters from level 1 on."""
        return DYNAMIC_KRAFT_VERSION if self._sets else 0

    @property
    def previous(self) -> VoterSet:
        """Return the set that applies again if the newest VotersRecord is truncated."""
        return self._sets[-2][1] if len(self._sets) > 1 else self._configured

    @property
    def last_offset(self) -> int:
        """Return the offset of the newest VotersRecord; -1 if there is none."""
        return self._sets[-1][0] if self._sets else -1

    def recorded_at(self, end_offset: int) -> VoterSet | None:
        """Return the set that a log that ends here has; None if its voters are those of the settings."""
        return next((voters for offset, voters in reversed(self._sets) if offset < end_offset), None)

    def append(self, offset: int, voters: VoterSet) -> None:
        assert offset > self.last_offset, f"voters at offset {offset}, not after {self.last_offset}"
        self._sets.append((offset, voters))

    def truncate(self, end_offset: int) -> None:
        """Undo the sets at and after this offset."""
        while self._sets and self._sets[-1][0] >= end_offset:
            self._sets.pop()

    def drop_before(self, offset: int) -> None:
        """Drop the sets that a snapshot up to this offset covers, but for the one that applies there."""
        while len(self._sets) > 1 and self._sets[1][0] < offset:
            self._sets.pop(0)

    def reset(self, offset: int, voters: VoterSet | None) -> None:
        """Replace the history by what an installed snapshot holds."""
        self._sets = [] if voters is None else [(offset, voters)]


def set_with(current: VoterSet, voter: Voter) -> VoterSet:
    """Return the set with a new voter. Raise KafkaError DUPLICATE_VOTER if a voter has this id."""
    if current.get(voter.key.id) is not None:
        raise KafkaError(ErrorCode.DUPLICATE_VOTER, f"node {voter.key.id} is a voter already")
    return current.adding(voter)


def set_without(current: VoterSet, key: ReplicaKey) -> VoterSet:
    """Return the set without a voter. Raise KafkaError VOTER_NOT_FOUND, or INVALID_REQUEST for the last voter."""
    if key not in current:
        raise KafkaError(ErrorCode.VOTER_NOT_FOUND, f"node {key.id} is no voter with this directory")
    if current.ids == [key.id]:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"node {key.id} is the last voter")
    return current.removing(key.id)


def set_updating(current: VoterSet, voter: Voter) -> VoterSet:
    """Return the set with new endpoints of a voter. Raise KafkaError VOTER_NOT_FOUND if it is none."""
    if voter.key not in current:
        raise KafkaError(ErrorCode.VOTER_NOT_FOUND, f"node {voter.key.id} is no voter with this directory")
    return current.adding(voter)


def successors(voters: VoterSet, leader: NodeId, end_offsets: dict[NodeId, int]) -> tuple[NodeId, ...]:
    """Return the other voters in the order in which they should campaign: the most complete log first."""
    others = [voter for voter in voters.ids if voter != leader]
    return tuple(sorted(others, key=lambda voter: (-end_offsets.get(voter, 0), voter)))
