"""The set of voters, and what a majority of them has on disk."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.base.ids import NodeId


class Voters:
    def __init__(self, ids: frozenset[NodeId]) -> None:
        if not ids:
            raise ValueError("a quorum needs at least one voter")
        self.ids = ids

    def __contains__(self, node: NodeId) -> bool:
        return node in self.ids

    @property
    def majority(self) -> int:
        return len(self.ids) // 2 + 1

    def persisted_by_majority(self, end_offsets: Mapping[NodeId, int]) -> int:
        """Return the largest end offset that a majority has on disk; a voter without an entry has nothing."""
        ends = sorted((end_offsets.get(voter, 0) for voter in self.ids), reverse=True)
        return ends[self.majority - 1]
