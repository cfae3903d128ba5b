"""Epochs, roles and elections of one replica, without I/O; `headrace.raft.node` adds replication."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.base.errors import ErrorCode
from headrace.base.ids import NO_NODE, NodeId
from headrace.raft.effects import (
    AppendLeaderChange,
    Effect,
    ElectionState,
    Persist,
    PersistElection,
    Rejected,
    Reply,
    RoleChanged,
    Send,
)
from headrace.raft.election import Tally, Timeouts, may_vote, would_vote
from headrace.raft.follower import FollowerState
from headrace.raft.leader import LeaderState
from headrace.raft.log_view import LogView, last_point
from headrace.raft.membership import VoterHistory, successors
from headrace.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochResponse,
    FetchRequest,
    VoteRequest,
    VoteResponse,
)
from headrace.raft.roles import TRANSITIONS, Role
from headrace.raft.voters import ReplicaKey, VoterSet

if TYPE_CHECKING:
    from random import Random

NEVER_MS = 1 << 62


class ElectionNode(ABC):
    """The part of a replica that decides who leads.

    `random` spreads the election timeouts of the voters. `bootstrap` are stand-ins for the ids of replicas of which only the address
    is known (controller.quorum.bootstrap.servers): a replica that is no voter asks them, too, who leads.
    """

    def __init__(
        self,
        key: ReplicaKey,
        voters: VoterHistory,
        state: ElectionState,
        log: LogView,
        timeouts: Timeouts,
        random: Random,
        bootstrap: Sequence[NodeId] = (),
    ) -> None:
        self.key = key
        self.history = voters
        self.state = state
        self.role = Role.UNATTACHED
        self.high_watermark = 0 if log.snapshot is None else log.snapshot.offset
        self.leading: LeaderState | None = None
        self._following: FollowerState | None = None
        self._tally: Tally | None = None
        self._log = log
        self._timeouts = timeouts
        self._random = random
        self._bootstrap = tuple(bootstrap)
        self._durable = log.end_offset
        self._generation = 0  # increased by truncations, so that an fsync from before one does not count
        self._grants: list[tuple[ElectionState, Reply]] = []  # votes to send once they are durable
        self._deadline_ms = NEVER_MS  # when the role ends by itself
        self._retry_ms = NEVER_MS  # when unanswered requests are sent again

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader(self) -> NodeId:
        """Return the leader as far as this node knows; none if it has resigned."""
        return NO_NODE if self.role is Role.RESIGNED else self.state.leader

    @property
    def voters(self) -> VoterSet:
        return self.history.current

    @property
    def kraft_version(self) -> int:
        return self.history.kraft_version

    @property
    def is_voter(self) -> bool:
        return self.key in self.voters

    @property
    def may_campaign(self) -> bool:
        """Return whether this node takes part in elections.

        A voter that has been removed still campaigns until its removal is known to be committed: its log may be the only one that
        can be elected (Raft, section 4.2.2 of the dissertation).
        """
        is_removal_open = self.history.last_offset >= self.high_watermark and self.key in self.history.previous
        return self.is_voter or is_removal_open

    @property
    def wake_ms(self) -> int:
        """Return when `tick` must be called next."""
        due = min(self._deadline_ms, self._retry_ms)
        if self._following is not None:
            due = min(due, self._following.deadline_ms)
        if self.leading is not None:
            lost_ms = self.leading.loses_quorum_ms(self.voters, self._timeouts.check_quorum_ms)
            due = min(due, NEVER_MS if lost_ms is None else lost_ms)
        return due

    def start(self, now_ms: int) -> list[Effect]:
        """Join the quorum. A former leader does not lead its old epoch again; the only voter campaigns at once."""
        is_alone = self.is_voter and len(self.voters.ids) == 1
        if self.state.leader == self.key.id and not is_alone:
            self.role = Role.RESIGNED
        elif self.state.leader >= 0 and not is_alone:
            return self._become_follower(self.epoch, self.state.leader, now_ms)
        self._deadline_ms = now_ms if is_alone else now_ms + self._timeouts.random_election_ms(self._random)
        self._retry_ms = now_ms
        return self.tick(now_ms)

    # --- time

    def tick(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if self.role is Role.RESIGNED and now_ms >= self._deadline_ms:
            effects += self._become_unattached(self.epoch + 1, now_ms)
            if self.is_voter and len(self.voters.ids) == 1:
                self._deadline_ms = now_ms
        if self.role is Role.UNATTACHED and now_ms >= self._deadline_ms:
            effects += self._become_prospective(now_ms) if self.may_campaign else self._wait_for_election(now_ms)
        elif self.role is Role.PROSPECTIVE and now_ms >= self._deadline_ms:
            effects += self._end_pre_vote(now_ms)
        elif self.role is Role.CANDIDATE and now_ms >= self._deadline_ms:
            effects += self._become_prospective(now_ms)
        elif self._following is not None and now_ms >= self._following.deadline_ms:
            effects += self._lose_leader(now_ms)
        elif self.leading is not None:
            lost_ms = self.leading.loses_quorum_ms(self.voters, self._timeouts.check_quorum_ms)
            if lost_ms is not None and now_ms >= lost_ms:
                return effects + self.resign(now_ms)
        if now_ms >= self._retry_ms:
            effects += self._send_again(now_ms)
        return effects

    def _lose_leader(self, now_ms: int) -> list[Effect]:
        return self._become_prospective(now_ms) if self.may_campaign else self._become_unattached(self.epoch, now_ms)

    def _send_again(self, now_ms: int) -> list[Effect]:
        """Send the requests of this role again to those that have not responded."""
        self._retry_ms = now_ms + self._timeouts.election_ms // 5
        match self.role:
            case Role.UNATTACHED:
                return self._look_for_leader()
            case Role.PROSPECTIVE | Role.CANDIDATE:
                return self._request_votes()
            case Role.FOLLOWER:
                following = self._following
                assert following is not None
                sent_ms = following.fetch_sent_ms
                if sent_ms is not None and now_ms - sent_ms >= self._timeouts.request_ms:
                    following.fetch_sent_ms = None
                return self._fetch(now_ms)
            case Role.LEADER:
                self._retry_ms = now_ms + self._timeouts.fetch_ms // 2
                assert self.leading is not None
                return self._announce(self.leading.silent_voters(self.voters, now_ms - self._timeouts.fetch_ms // 2))
            case Role.RESIGNED:
                return self._announce_end(())

    def _wait_for_election(self, now_ms: int) -> list[Effect]:
        self._deadline_ms = now_ms + self._timeouts.random_election_ms(self._random)
        return []

    def _look_for_leader(self) -> list[Effect]:
        """Fetch from some voter: if it does not lead, its response may name the leader."""
        others = [voter for voter in self.voters.ids if voter != self.key.id]
        if not self.is_voter:
            others += self._bootstrap
        if not others or self._durable < self._log.end_offset:
            return []
        return [Send(self._random.choice(others), self._fetch_request())]

    # --- roles

    def _turn(self, role: Role) -> None:
        assert role in TRANSITIONS[self.role], f"{self.role.value} cannot become {role.value}"
        self.role = role
        self.leading = self._following = self._tally = None
        self._deadline_ms = NEVER_MS

    def _set_state(self, state: ElectionState) -> list[Effect]:
        assert state.epoch >= self.epoch, f"epoch {self.epoch} cannot go back to {state.epoch}"
        if state == self.state:
            return []
        self.state = state
        return [PersistElection(state)]

    def _role_changed(self) -> Effect:
        return RoleChanged(self.role, self.epoch, self.leader)

    def _become_unattached(self, epoch: int, now_ms: int) -> list[Effect]:
        self._turn(Role.UNATTACHED)
        state = ElectionState(epoch) if epoch > self.epoch else replace(self.state, leader=NO_NODE)
        self._deadline_ms = now_ms + self._timeouts.random_election_ms(self._random)
        self._retry_ms = now_ms + self._timeouts.retry_ms
        return [*self._set_state(state), self._role_changed()]

    def _become_follower(self, epoch: int, leader: NodeId, now_ms: int) -> list[Effect]:
        voted_for = self.state.voted_for if epoch == self.epoch else None
        self._turn(Role.FOLLOWER)
        effects = self._set_state(ElectionState(epoch, leader, voted_for))
        self._following = FollowerState(leader, now_ms + self._timeouts.fetch_ms)
        self._retry_ms = now_ms + self._timeouts.retry_ms
        effects.append(self._role_changed())
        if self._durable < self._log.end_offset:  # a former leader's own records
            effects.append(Persist(self._log.end_offset, self._generation))
        return effects + self._fetch(now_ms)

    def _become_prospective(self, now_ms: int) -> list[Effect]:
        self._turn(Role.PROSPECTIVE)
        self._tally = Tally(self.voters)
        self._tally.record(self.key.id, granted=True)
        self._deadline_ms = now_ms + self._timeouts.random_election_ms(self._random)
        self._retry_ms = now_ms + self._timeouts.retry_ms
        if self._tally.is_won:
            return self._become_candidate(now_ms)
        return [self._role_changed(), *self._request_votes()]

    def _end_pre_vote(self, now_ms: int) -> list[Effect]:
        """Give up the round of pre-votes: follow the leader again, if there was one, or wait for the next election."""
        if self.state.leader >= 0:
            return self._become_follower(self.epoch, self.state.leader, now_ms)
        return self._become_unattached(self.epoch, now_ms)

    def _become_candidate(self, now_ms: int) -> list[Effect]:
        self._turn(Role.CANDIDATE)
        self._tally = Tally(self.voters)
        self._deadline_ms = now_ms + self._timeouts.random_election_ms(self._random)
        self._retry_ms = NEVER_MS  # until the own vote is durable
        persist = self._set_state(ElectionState(self.epoch + 1, voted_for=self.key))
        return [*persist, self._role_changed()]

    def _become_leader(self, now_ms: int) -> list[Effect]:
        assert self._tally is not None
        granted_by = tuple(sorted(self._tally.granted))
        self._turn(Role.LEADER)
        self.leading = LeaderState(self.key.id, self._log.end_offset, now_ms)
        self.leading.persisted(self._durable)
        self._retry_ms = now_ms + self._timeouts.fetch_ms // 2
        effects = self._set_state(replace(self.state, leader=self.key.id))
        others = [voter for voter in self.voters.ids if voter != self.key.id]
        return [
            *effects,
            self._role_changed(),
            AppendLeaderChange(self.epoch, self.voters, granted_by),
            *self._announce(others),
        ]

    def resign(self, now_ms: int) -> list[Effect]:
        """Stop leading and name the successors. A node that does not lead has nothing to resign from."""
        if self.leading is None:
            return []
        preferred = successors(self.voters, self.key.id, self.leading.end_offsets(self.voters))
        self._turn(Role.RESIGNED)
        self._deadline_ms = now_ms + self._timeouts.random_election_ms(self._random)
        self._retry_ms = now_ms + self._timeouts.election_ms // 5
        return [self._role_changed(), *self._announce_end(preferred)]

    def _announce(self, voters: list[NodeId]) -> list[Effect]:
        return [Send(voter, BeginQuorumEpochRequest(self.epoch, self.key.id)) for voter in voters]

    def _announce_end(self, preferred: tuple[NodeId, ...]) -> list[Effect]:
        others = [voter for voter in self.voters.ids if voter != self.key.id]
        request = EndQuorumEpochRequest(self.epoch, self.key.id, preferred or tuple(others))
        return [Send(voter, request) for voter in others]

    # --- epochs

    def _learn_epoch(self, epoch: int, leader: NodeId, now_ms: int) -> list[Effect]:
        """Move to a newer epoch, or follow the leader of this one, as a response says."""
        has_leader = leader >= 0 and leader != self.key.id
        if epoch > self.epoch:
            if has_leader:
                return self._become_follower(epoch, leader, now_ms)
            return self._become_unattached(epoch, now_ms)
        if epoch < self.epoch or not has_leader or leader == self.state.leader:
            return []
        if self.state.leader >= 0:
            return [Rejected(f"nodes {self.state.leader} and {leader} both claim to lead epoch {epoch}")]
        return self._become_follower(epoch, leader, now_ms)

    def _epoch_reply(self, token: int, error: ErrorCode = ErrorCode.NONE) -> Reply:
        return Reply(token, EpochResponse(self.key.id, self.epoch, self.leader, error))

    # --- elections

    def _request_votes(self) -> list[Effect]:
        assert self._tally is not None
        pre_vote = self.role is Role.PROSPECTIVE
        last = last_point(self._log)
        requests: list[Effect] = []
        for node_id in self._tally.missing():
            voter = self.voters.get(node_id)
            if node_id != self.key.id and voter is not None:
                requests.append(Send(node_id, VoteRequest(self.epoch, self.key, last, pre_vote, voter.key)))
        return requests

    def _on_vote(self, request: VoteRequest, now_ms: int) -> list[Effect]:
        token, pre_vote = request.token, request.pre_vote
        if request.epoch < self.epoch:
            return [self._vote_reply(request, False, ErrorCode.FENCED_LEADER_EPOCH)]
        if request.voter is not None and not request.voter.matches(self.key):
            return [self._vote_reply(request, False, ErrorCode.INVALID_VOTER_KEY)]
        effects: list[Effect] = []
        if request.epoch > self.epoch:
            effects += self._become_unattached(request.epoch, now_ms)
        own = last_point(self._log)
        if pre_vote:
            has_fetched = self._following is not None and self._following.has_fetched
            return [*effects, self._vote_reply(request, would_vote(self.role, has_fetched, request.last, own))]
        if not may_vote(self.state, self.role, request.candidate, request.last, own):
            return [*effects, self._vote_reply(request, False)]
        voted_for = self.state.voted_for
        if voted_for is not None and voted_for.matches(request.candidate) and not self._is_pending(self.state):
            return [*effects, self._vote_reply(request, True)]
        if self.role is Role.PROSPECTIVE:
            effects += self._become_unattached(self.epoch, now_ms)
        effects += self._set_state(replace(self.state, voted_for=request.candidate))
        self._deadline_ms = now_ms + self._timeouts.random_election_ms(self._random)
        self._grants.append((self.state, Reply(token, VoteResponse(self.key.id, self.epoch, NO_NODE, True, False))))
        return effects

    def _is_pending(self, state: ElectionState) -> bool:
        return any(pending == state for pending, _ in self._grants)

    def _vote_reply(self, request: VoteRequest, granted: bool, error: ErrorCode = ErrorCode.NONE) -> Reply:
        return Reply(
            request.token, VoteResponse(self.key.id, self.epoch, self.leader, granted, request.pre_vote, error)
        )

    def election_persisted(self, state: ElectionState, now_ms: int) -> list[Effect]:
        """Count and send the votes that are durable now."""
        effects: list[Effect] = [reply for pending, reply in self._grants if pending == state]
        self._grants = [grant for grant in self._grants if grant[0] != state]
        if self.role is Role.CANDIDATE and state == self.state and self._tally is not None:
            self._tally.record(self.key.id, granted=True)
            if self._tally.is_won:
                return effects + self._become_leader(now_ms)
            self._retry_ms = now_ms + self._timeouts.election_ms // 5
            effects += self._request_votes()
        return effects

    def _on_vote_response(self, response: VoteResponse, now_ms: int) -> list[Effect]:
        if self._tally is None or response.pre_vote != (self.role is Role.PROSPECTIVE):
            return []  # of an earlier round
        self._tally.record(response.sender, response.granted)
        if self._tally.is_won:
            return self._become_candidate(now_ms) if response.pre_vote else self._become_leader(now_ms)
        if self._tally.is_lost:
            self._deadline_ms = min(self._deadline_ms, now_ms + self._timeouts.random_backoff_ms(self._random))
        return []

    def _on_begin(self, request: BeginQuorumEpochRequest, now_ms: int) -> list[Effect]:
        if request.epoch < self.epoch:
            return [self._epoch_reply(request.token, ErrorCode.FENCED_LEADER_EPOCH)]
        if request.leader == self.key.id or (
            request.epoch == self.epoch and self.state.leader >= 0 and self.state.leader != request.leader
        ):
            return [self._epoch_reply(request.token, ErrorCode.INVALID_REQUEST)]
        effects: list[Effect] = []
        if request.epoch > self.epoch or self.role is not Role.FOLLOWER:
            effects += self._become_follower(request.epoch, request.leader, now_ms)
        return [*effects, self._epoch_reply(request.token)]

    def _on_end(self, request: EndQuorumEpochRequest, now_ms: int) -> list[Effect]:
        if request.epoch < self.epoch:
            return [self._epoch_reply(request.token, ErrorCode.FENCED_LEADER_EPOCH)]
        effects: list[Effect] = []
        if request.epoch > self.epoch:
            effects += self._become_unattached(request.epoch, now_ms)
        following = self._following
        if following is not None and following.leader == request.leader and self.may_campaign:
            delay_ms = self._timeouts.successor_delay_ms(request.successors, self.key.id, self._random)
            following.deadline_ms = min(following.deadline_ms, now_ms + delay_ms)
            following.has_fetched = False  # the leader steps down: others may be elected
        effects.append(self._epoch_reply(request.token))
        return effects + self.tick(now_ms)

    # --- what replication adds

    @abstractmethod
    def _fetch_request(self) -> FetchRequest: ...

    @abstractmethod
    def _fetch(self, now_ms: int) -> list[Effect]:
        """Fetch from the leader, if everything that was fetched is durable and no other fetch is under way."""
