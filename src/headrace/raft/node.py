"""One voter: epochs, roles and the commit rule.

    unattached --campaign--> candidate --majority granted--> leader --resign--> resigned

A leader commits what a majority of voters has on disk, but only once that includes a record of the leader's epoch: an older
record can be on a majority and still be overwritten (Raft, section 5.4.2). The log itself belongs to the shell; the node
knows only where it ends and how far it is durable.
"""

from __future__ import annotations

from enum import Enum

from msgspec.structs import replace

from headrace.base.ids import NodeId
from headrace.raft.messages import BecomeLeader, Committed, Effect, ElectionState, Persist, PersistElection
from headrace.raft.voters import Voters


class Role(Enum):
    UNATTACHED = "unattached"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"


TRANSITIONS: dict[Role, frozenset[Role]] = {
    Role.UNATTACHED: frozenset({Role.CANDIDATE, Role.RESIGNED}),
    Role.CANDIDATE: frozenset({Role.CANDIDATE, Role.LEADER, Role.UNATTACHED, Role.RESIGNED}),
    Role.LEADER: frozenset({Role.RESIGNED, Role.UNATTACHED}),
    Role.RESIGNED: frozenset(),
}


class RaftNode:
    def __init__(self, node_id: NodeId, voters: Voters, state: ElectionState, log_end: int) -> None:
        self.node_id = node_id
        self.voters = voters
        self.state = state
        self.role = Role.UNATTACHED
        self.log_end = log_end
        self.high_watermark = 0
        self._epoch_start = -1  # first offset of this leader's epoch
        self._durable: dict[NodeId, int] = {}  # last known end offset on disk of each voter
        self._granted: set[NodeId] = set()

    @property
    def epoch(self) -> int:
        return self.state.epoch

    def campaign(self) -> list[Effect]:
        self._become(Role.CANDIDATE)
        self._granted = set()
        self.state = ElectionState(self.state.epoch + 1, voted_for=self.node_id)
        return [PersistElection(self.state)]

    def election_persisted(self, state: ElectionState) -> list[Effect]:
        if state != self.state or self.role is not Role.CANDIDATE:
            return []  # an older campaign, superseded while it was being written
        return self.vote_granted(self.node_id, state.epoch)

    def vote_granted(self, voter: NodeId, epoch: int) -> list[Effect]:
        if self.role is not Role.CANDIDATE or epoch != self.epoch or voter not in self.voters:
            return []
        self._granted.add(voter)
        if len(self._granted) < self.voters.majority:
            return []
        self._become(Role.LEADER)
        self.state = replace(self.state, leader=self.node_id)
        self._epoch_start = self.log_end
        self._durable = {}
        return [BecomeLeader(self.epoch, tuple(sorted(self.voters.ids)), tuple(sorted(self._granted)))]

    def proposed(self, end_offset: int) -> list[Effect]:
        """Note that the leader's log now ends here; it does not count towards a commit until it is on disk."""
        assert self.role is Role.LEADER, f"only a leader proposes, this node is {self.role.value}"
        assert end_offset > self.log_end, f"log end {self.log_end} cannot become {end_offset}"
        self.log_end = end_offset
        return [Persist(end_offset)]

    def persisted(self, end_offset: int) -> list[Effect]:
        return self.voter_persisted(self.node_id, end_offset)

    def voter_persisted(self, voter: NodeId, end_offset: int) -> list[Effect]:
        """Note that a voter has the log on disk up to here; for other voters, that is their fetch offset."""
        if self.role is not Role.LEADER or voter not in self.voters:
            return []
        assert end_offset <= self.log_end, (
            f"voter {voter} reports end offset {end_offset}, beyond the log end {self.log_end}"
        )
        self._durable[voter] = max(end_offset, self._durable.get(voter, 0))
        persisted_end = self.voters.persisted_by_majority(self._durable)
        if persisted_end <= self._epoch_start or persisted_end <= self.high_watermark:
            return []
        self.high_watermark = persisted_end
        return [Committed(persisted_end)]

    def resign(self) -> None:
        self._become(Role.RESIGNED)

    def _become(self, role: Role) -> None:
        assert role in TRANSITIONS[self.role], f"{self.role.value} cannot become {role.value}"
        self.role = role
