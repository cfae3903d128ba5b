"""The state of a leader: how far each replica is, what is committed, and whether a majority still fetches.

A leader commits what a majority of voters has on disk, but only once that includes a record of the leader's epoch: an older record can be
on a majority and still be overwritten (Raft, section 5.4.2).
"""

from __future__ import annotations

from msgspec import Struct

from headrace.base.ids import NodeId
from headrace.raft.voters import ReplicaKey, Voter, VoterSet

OBSERVER_CAUGHT_UP_MS_MAX = 3_600_000  # an observer that has fetched within this time may become a voter
REPLICAS_MAX = 1000  # replicas whose progress is remembered; any node that may fetch can claim to be an observer


class Progress(Struct):
    """How far a replica is, by its last fetch."""

    end_offset: int = 0
    fetched_ms: int = -1  # -1: never
    caught_up_ms: int = -1  # when it last had everything that the leader had at its previous fetch
    leader_end: int = 0  # the leader's end offset at its last fetch


class LeaderState:
    """A leader's volatile state, for one epoch."""

    def __init__(self, node_id: NodeId, epoch_start: int, now_ms: int) -> None:
        self._node_id = node_id
        self._epoch_start = epoch_start  # offset of the leader-change record
        self._elected_ms = now_ms
        self._own_end = 0  # what this node has on disk
        self._progress: dict[ReplicaKey, Progress] = {}
        # Static voters as they describe themselves, for an upgrade of kraft.version; no more than there are voters.
        self.described: dict[NodeId, Voter] = {}

    def persisted(self, end_offset: int) -> None:
        self._own_end = max(self._own_end, end_offset)

    def fetched(self, replica: ReplicaKey, offset: int, log_end: int, now_ms: int) -> None:
        """Record a valid fetch: everything below its offset is on the replica's disk."""
        progress = self._of(replica)
        if offset >= log_end:
            progress.caught_up_ms = now_ms
        elif offset >= progress.leader_end:
            progress.caught_up_ms = max(progress.caught_up_ms, progress.fetched_ms)
        progress.end_offset, progress.fetched_ms, progress.leader_end = offset, now_ms, log_end

    def contacted(self, replica: ReplicaKey, now_ms: int) -> None:
        """Record that a replica is alive, though it has to truncate its log or fetch a snapshot first."""
        self._of(replica).fetched_ms = now_ms

    def _of(self, replica: ReplicaKey) -> Progress:
        progress = self._progress.get(replica)
        if progress is None:
            # A node that returns with another disk has lost what it had on the first one.
            for former in [key for key in self._progress if key.id == replica.id]:
                del self._progress[former]
            if len(self._progress) >= REPLICAS_MAX:
                self._progress.pop(min(self._progress, key=lambda key: self._progress[key].fetched_ms))
            progress = self._progress[replica] = Progress()
        return progress

    def progress(self, voters: VoterSet) -> dict[NodeId, Progress]:
        """Return the progress of the other voters that have fetched in this epoch."""
        return {
            key.id: progress for key, progress in self._progress.items() if key in voters and key.id != self._node_id
        }

    def observers(self, voters: VoterSet) -> dict[ReplicaKey, Progress]:
        return {key: progress for key, progress in self._progress.items() if key not in voters}

    def is_caught_up(self, replica: ReplicaKey, now_ms: int) -> bool:
        """Return whether a replica may become a voter without holding up commits for long."""
        progress = self._progress.get(replica)
        return (
            progress is not None
            and progress.caught_up_ms >= 0
            and now_ms - progress.fetched_ms <= OBSERVER_CAUGHT_UP_MS_MAX
        )

    def committed(self, voters: VoterSet) -> int:
        """Return the end of what is committed in this epoch; -1 while nothing of this epoch is."""
        held = voters.persisted_by_majority(self.end_offsets(voters))
        return held if held > self._epoch_start else -1

    def end_offsets(self, voters: VoterSet) -> dict[NodeId, int]:
        return {self._node_id: self._own_end} | {
            voter: progress.end_offset for voter, progress in self.progress(voters).items()
        }

    def loses_quorum_ms(self, voters: VoterSet, timeout_ms: int) -> int | None:
        """Return when a majority will not have fetched for `timeout_ms`; None if this node alone is a majority."""
        needed = voters.majority - (1 if voters.get(self._node_id) is not None else 0)
        if needed == 0:
            return None
        progress = self.progress(voters)
        times = sorted(
            (
                progress[voter].fetched_ms if voter in progress else self._elected_ms
                for voter in voters.ids
                if voter != self._node_id
            ),
            reverse=True,
        )
        return times[needed - 1] + timeout_ms

    def silent_voters(self, voters: VoterSet, since_ms: int) -> list[NodeId]:
        """Return the other voters that have not fetched since then."""
        progress = self.progress(voters)
        return [
            voter
            for voter in voters.ids
            if voter != self._node_id and (voter not in progress or progress[voter].fetched_ms < since_ms)
        ]
