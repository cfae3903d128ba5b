"""Elections: when to campaign, whom to vote for, and who has won."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from headrace.base.ids import NodeId
from headrace.raft.effects import ElectionState
from headrace.raft.log_view import LogPoint
from headrace.raft.roles import Role
from headrace.raft.voters import ReplicaKey, VoterSet

if TYPE_CHECKING:
    from random import Random

SUCCESSOR_BACKOFF_MS = 50  # wait of the second preferred successor; it doubles for each one after it


class Timeouts(Struct, frozen=True):
    """The timeouts of the quorum, in milliseconds, with Kafka's defaults."""

    election_ms: int = 1000  # controller.quorum.election.timeout.ms
    election_backoff_ms_max: int = 1000  # controller.quorum.election.backoff.max.ms
    fetch_ms: int = 2000  # controller.quorum.fetch.timeout.ms
    request_ms: int = 2000  # controller.quorum.request.timeout.ms
    retry_ms: int = 20  # controller.quorum.retry.backoff.ms

    @property
    def check_quorum_ms(self) -> int:
        """Return how long a leader leads without fetches of a majority: long enough for a follower to fetch again."""
        return self.fetch_ms * 3 // 2

    def random_election_ms(self, random: Random) -> int:
        """Return an election timeout that is likely to differ from those of the other voters."""
        return self.election_ms + random.randrange(self.election_ms)

    def random_stagger_ms(self, random: Random) -> int:
        """Return a short wait that lets one of several voters, who all see at once that the leader is gone, campaign first."""
        return random.randrange(self.election_ms // 10 + 1)

    def random_backoff_ms(self, random: Random) -> int:
        return random.randrange(1, self.election_backoff_ms_max + 1)

    def successor_delay_ms(self, successors: tuple[NodeId, ...], node_id: NodeId, random: Random) -> int:
        """Return when to campaign after a leader has resigned: at once as its first choice, later as a later one."""
        if node_id not in successors:
            return self.random_election_ms(random)
        position = successors.index(node_id)
        return min(SUCCESSOR_BACKOFF_MS << (position - 1), self.election_backoff_ms_max) if position else 0


class Tally:
    """The votes of one campaign, or of one round of pre-votes."""

    def __init__(self, voters: VoterSet) -> None:
        self._voters = voters
        self.granted: set[NodeId] = set()
        self._rejected: set[NodeId] = set()

    def record(self, voter: NodeId, granted: bool) -> None:
        """Record a vote. Votes of others than the voters do not count, and a voter's first vote stands."""
        if self._voters.get(voter) is not None and voter not in self.granted | self._rejected:
            (self.granted if granted else self._rejected).add(voter)

    @property
    def is_won(self) -> bool:
        return len(self.granted) >= self._voters.majority

    @property
    def is_lost(self) -> bool:
        return len(self._voters.ids) - len(self._rejected) < self._voters.majority

    def missing(self) -> list[NodeId]:
        """Return the voters that have not voted yet."""
        return [voter for voter in self._voters.ids if voter not in self.granted | self._rejected]


def may_vote(state: ElectionState, role: Role, candidate: ReplicaKey, last: LogPoint, own: LogPoint) -> bool:
    """Return whether a vote may be granted: once per epoch, in no epoch with a leader, only to a log as good as ours."""
    if state.voted_for is not None:
        return state.voted_for.matches(candidate)
    return role in (Role.UNATTACHED, Role.PROSPECTIVE) and state.leader < 0 and last >= own


def would_vote(role: Role, has_fetched: bool, last: LogPoint, own: LogPoint) -> bool:
    """Return the response to a pre-vote: a voter that can reach a leader keeps it in office."""
    return role is not Role.LEADER and not has_fetched and last >= own
