"""Voters of the quorum: who they are, where they are, and what a majority of them has on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from headrace.base.ids import ZERO_UUID, NodeId, Uuid


class ReplicaKey(NamedTuple):
    """Identifies a replica of the metadata log: a node with a new disk is a new replica (KIP-853)."""

    id: NodeId
    directory: Uuid = ZERO_UUID  # zero: unknown, as for the voters of controller.quorum.voters

    def matches(self, other: ReplicaKey) -> bool:
        """Return whether both can be the same replica; directories are compared only if both are known."""
        return self.id == other.id and (
            self.directory == other.directory or ZERO_UUID in (self.directory, other.directory)
        )


class Endpoint(NamedTuple):
    """An address of a controller listener."""

    listener: str
    host: str
    port: int


class Voter(Struct, frozen=True):
    """A voter with its addresses and the kraft.version levels that it supports."""

    key: ReplicaKey
    endpoints: tuple[Endpoint, ...] = ()
    kraft_version_min: int = 0
    kraft_version_max: int = 1


class VoterSet:
    """An immutable set of voters with distinct node ids; empty for a replica that has yet to learn who they are."""

    __slots__ = ("_voters", "majority")

    def __init__(self, voters: Iterable[Voter]) -> None:
        self._voters = {voter.key.id: voter for voter in voters}
        self.majority = len(self._voters) // 2 + 1

    @classmethod
    def of_ids(cls, *ids: int) -> VoterSet:
        """Return a set of voters without directories or endpoints."""
        return cls(Voter(ReplicaKey(NodeId(node_id))) for node_id in ids)

    @property
    def ids(self) -> list[NodeId]:
        return sorted(self._voters)

    @property
    def voters(self) -> list[Voter]:
        return [self._voters[node_id] for node_id in self.ids]

    def get(self, node_id: NodeId) -> Voter | None:
        return self._voters.get(node_id)

    def __contains__(self, key: ReplicaKey) -> bool:
        """Return whether the replica is a voter."""
        voter = self._voters.get(key.id)
        return voter is not None and voter.key.matches(key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(tuple(self.voters))

    def __repr__(self) -> str:
        return f"VoterSet({', '.join(map(str, self.ids))})"

    def adding(self, voter: Voter) -> VoterSet:
        """Return the set with this voter, which replaces one of the same id."""
        return VoterSet([*(one for one in self.voters if one.key.id != voter.key.id), voter])

    def removing(self, node_id: NodeId) -> VoterSet:
        return VoterSet(one for one in self.voters if one.key.id != node_id)

    def persisted_by_majority(self, end_offsets: Mapping[NodeId, int]) -> int:
        """Return the largest end offset that a majority has on disk; a voter without an entry has nothing."""
        ends = sorted((end_offsets.get(voter, 0) for voter in self._voters), reverse=True)
        return ends[self.majority - 1]
