"""Raft's properties, checked at every step over all replicas."""

from __future__ import annotations

from headrace.base.ids import NodeId
from headrace.raft.voters import VoterSet
from testkit.raft.memory_log import Entry, MemoryLog


class PropertyViolated(AssertionError):
    """The replicas did what Raft rules out."""


class RaftChecks:
    """What must hold over the whole run: one leader per epoch, and one sequence of committed records, never undone."""

    def __init__(self) -> None:
        self.committed: list[Entry] = []
        self._leaders: dict[int, NodeId] = {}
        self._high_watermarks: dict[NodeId, int] = {}

    @property
    def epochs(self) -> int:
        return len(self._leaders)

    def became_leader(self, node_id: NodeId, epoch: int, log: MemoryLog) -> None:
        """Check election safety and leader completeness."""
        if self._leaders.setdefault(epoch, node_id) != node_id:
            raise PropertyViolated(f"nodes {self._leaders[epoch]} and {node_id} both lead epoch {epoch}")
        if log.end_offset < len(self.committed):
            raise PropertyViolated(
                f"leader {node_id} of epoch {epoch} lacks committed records from {log.end_offset} on"
            )
        self._check_prefix(node_id, log, len(self.committed))

    def advanced(self, node_id: NodeId, high_watermark: int, log: MemoryLog) -> None:
        """Check that every node commits the same records at the same offsets, and none that it does not have."""
        if high_watermark > log.end_offset:
            raise PropertyViolated(f"node {node_id} commits up to {high_watermark}, past its end {log.end_offset}")
        if high_watermark < self._high_watermarks.get(node_id, 0):
            raise PropertyViolated(f"the high watermark of node {node_id} goes back to {high_watermark}")
        self._high_watermarks[node_id] = high_watermark
        self._check_prefix(node_id, log, min(high_watermark, len(self.committed)))
        for offset in range(len(self.committed), high_watermark):
            self.committed.append(log.entry(offset))

    def committed_by_leader(self, high_watermark: int, voters: VoterSet, logs: dict[NodeId, MemoryLog]) -> None:
        """Check that a majority of the voters has on disk what the leader commits."""
        holders = [voter for voter in voters.ids if voter in logs and logs[voter].durable_end >= high_watermark]
        if len(holders) < voters.majority:
            raise PropertyViolated(f"offset {high_watermark} is committed, but only on the disks of {holders}")

    def truncated(self, node_id: NodeId, end_offset: int) -> None:
        """Check that no committed record is removed from a node that knew it was committed."""
        if end_offset < self._high_watermarks.get(node_id, 0):
            raise PropertyViolated(f"node {node_id} truncates committed records from {end_offset} on")

    def restarted(self, node_id: NodeId, high_watermark: int) -> None:
        """Start over with a node that has forgotten its high watermark."""
        self._high_watermarks[node_id] = high_watermark

    def same_logs(self, logs: dict[NodeId, MemoryLog]) -> None:
        """Check log matching: logs that agree on the epoch of an offset agree on everything before it."""
        nodes = list(logs)
        for one, other in ((one, other) for one in nodes for other in nodes if one < other):
            first, second = logs[one], logs[other]
            start, end = max(first.start_offset, second.start_offset), min(first.end_offset, second.end_offset)
            matched = False
            for offset in range(end - 1, start - 1, -1):
                left, right = first.entry(offset), second.entry(offset)
                matched = matched or left.epoch == right.epoch
                if matched and left != right:
                    raise PropertyViolated(f"nodes {one} and {other} differ at offset {offset}: {left} and {right}")

    def _check_prefix(self, node_id: NodeId, log: MemoryLog, end: int) -> None:
        for offset in range(log.start_offset, end):
            if log.entry(offset) != self.committed[offset]:
                raise PropertyViolated(
                    f"node {node_id} has {log.entry(offset)} at offset {offset}, committed is {self.committed[offset]}"
                )
