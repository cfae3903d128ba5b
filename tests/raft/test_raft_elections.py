"""Elections: pre-votes, votes that count only once they are durable, and who may be elected."""

from __future__ import annotations

import pytest
from tests.raft.raft_harness import TIMEOUTS, NodeHarness, replies, requests

from headrace.base.errors import ErrorCode
from headrace.base.ids import NO_NODE, NodeId, Uuid
from headrace.raft.effects import AppendLeaderChange, ElectionState, PersistElection, Rejected, RoleChanged
from headrace.raft.log_view import LogPoint
from headrace.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochResponse,
    FetchRequest,
    FetchResponse,
    VoteRequest,
    VoteResponse,
)
from headrace.raft.roles import TRANSITIONS, Role
from headrace.raft.voters import ReplicaKey

ONE, TWO, THREE = (ReplicaKey(NodeId(number)) for number in (1, 2, 3))


def vote_from(sender: int, epoch: int, granted: bool = True, pre_vote: bool = False) -> VoteResponse:
    return VoteResponse(NodeId(sender), epoch, NO_NODE, granted, pre_vote)


def vote_request(
    candidate: ReplicaKey, epoch: int, last: tuple[int, int] = (0, 0), pre_vote: bool = False
) -> VoteRequest:
    return VoteRequest(epoch, candidate, LogPoint(*last), pre_vote, ONE, token=7)


def test_the_only_voter_leads_as_soon_as_its_vote_is_durable() -> None:
    harness = NodeHarness(1, epochs=(4, 4))
    assert PersistElection(ElectionState(5, voted_for=ONE)) in harness.first and harness.node.role is Role.CANDIDATE
    effects = harness.persist_election()
    assert harness.node.role is Role.LEADER and requests(effects) == []
    [change] = [effect for effect in effects if isinstance(effect, AppendLeaderChange)]
    assert (change.epoch, change.voters.ids, change.granted_by) == (5, [1], (1,))


def test_a_voter_requests_pre_votes_before_it_starts_a_new_epoch() -> None:
    harness = NodeHarness(1, 2, 3, epochs=(1, 3))
    effects = harness.time_out()
    assert harness.node.role is Role.PROSPECTIVE and harness.node.epoch == 3
    expected = [(peer.id, VoteRequest(3, ONE, LogPoint(3, 2), True, peer)) for peer in (TWO, THREE)]
    assert requests(effects)[:2] == expected
    effects = harness.step(vote_from(2, 3, pre_vote=True))
    assert harness.node.role is Role.CANDIDATE and harness.node.epoch == 4
    assert requests(effects) == []  # its own vote is not durable yet
    assert [to for to, _ in requests(harness.persist_election())] == [2, 3]


def test_a_candidate_leads_with_the_votes_of_a_majority_and_announces_its_epoch() -> None:
    harness = NodeHarness(1, 2, 3, 4, 5)
    harness.time_out()
    harness.step(vote_from(2, 0, pre_vote=True))
    harness.step(vote_from(3, 0, pre_vote=True))
    harness.persist_election()
    harness.step(vote_from(4, 1))
    harness.step(vote_from(4, 1))  # a repeated response counts once
    assert harness.node.role is Role.CANDIDATE
    effects = harness.step(vote_from(5, 1))
    assert harness.node.role is Role.LEADER and harness.node.leader == 1
    assert requests(effects) == [(peer, BeginQuorumEpochRequest(1, NodeId(1))) for peer in (2, 3, 4, 5)]


def test_votes_of_other_nodes_epochs_and_rounds_do_not_count() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.time_out()
    harness.step(vote_from(9, 0, pre_vote=True))
    assert harness.node.role is Role.PROSPECTIVE
    harness.step(vote_from(2, 0, pre_vote=True))
    harness.persist_election()
    for response in (vote_from(9, 1), vote_from(2, 0), vote_from(2, 1, pre_vote=True), vote_from(2, 1, granted=False)):
        harness.step(response)
        assert harness.node.role is Role.CANDIDATE


def test_a_vote_is_sent_only_after_it_is_durable_and_stands_for_the_epoch() -> None:
    harness = NodeHarness(1, 2, 3)
    effects = harness.step(vote_request(TWO, 5))
    assert PersistElection(ElectionState(5, voted_for=TWO)) in effects and replies(effects) == []
    assert replies(harness.step(vote_request(THREE, 5))) == [vote_from(1, 5, granted=False)]
    assert replies(harness.persist_election()) == [vote_from(1, 5)]
    assert replies(harness.step(vote_request(TWO, 5))) == [vote_from(1, 5)]  # the response was lost
    assert replies(harness.step(vote_request(THREE, 5))) == [vote_from(1, 5, granted=False)]


def test_a_repeated_request_gets_no_vote_before_it_is_durable() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.step(vote_request(TWO, 5))
    assert replies(harness.step(vote_request(TWO, 5))) == []
    assert len(replies(harness.persist_election())) == 2


@pytest.mark.parametrize(
    ("last", "granted"), [((2, 3), True), ((2, 4), True), ((3, 1), True), ((2, 2), False), ((1, 9), False)]
)
@pytest.mark.parametrize("pre_vote", [True, False])
def test_votes_are_granted_only_to_logs_at_least_as_complete(
    last: tuple[int, int], granted: bool, pre_vote: bool
) -> None:
    harness = NodeHarness(1, 2, 3, epochs=(1, 1, 2))
    effects = [*harness.step(vote_request(TWO, 4, last, pre_vote)), *harness.persist_election()]
    [response] = replies(effects)
    assert isinstance(response, VoteResponse) and response.granted is granted
    assert harness.node.state.voted_for == (TWO if granted and not pre_vote else None)


def test_a_follower_that_fetches_from_its_leader_refuses_pre_votes() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.step(BeginQuorumEpochRequest(3, NodeId(2)))
    [response] = replies(harness.step(vote_request(THREE, 3, pre_vote=True)))
    assert response == VoteResponse(NodeId(1), 3, NodeId(2), True, True)
    harness.step(FetchResponse(NodeId(2), 3, NodeId(2), 0, 0))
    [response] = replies(harness.step(vote_request(THREE, 3, pre_vote=True)))
    assert isinstance(response, VoteResponse) and not response.granted and harness.node.epoch == 3


def test_requests_of_older_epochs_and_for_another_replica_are_refused() -> None:
    harness = NodeHarness(1, 2, 3, epochs=(4,))
    [response] = replies(harness.step(vote_request(TWO, 3)))
    assert isinstance(response, VoteResponse) and response.error is ErrorCode.FENCED_LEADER_EPOCH
    harness.node.key = ReplicaKey(NodeId(1), Uuid(b"o" * 16))
    misdirected = VoteRequest(9, TWO, LogPoint(9, 9), False, ReplicaKey(NodeId(1), Uuid(b"x" * 16)))
    [response] = replies(harness.step(misdirected))
    assert isinstance(response, VoteResponse) and response.error is ErrorCode.INVALID_VOTER_KEY
    assert harness.node.epoch == 4
    for request in (BeginQuorumEpochRequest(3, NodeId(2)), EndQuorumEpochRequest(3, NodeId(2), ())):
        assert replies(harness.step(request)) == [EpochResponse(NodeId(1), 4, NO_NODE, ErrorCode.FENCED_LEADER_EPOCH)]


def test_a_lost_pre_vote_returns_to_the_leader_that_was_followed() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.step(BeginQuorumEpochRequest(3, NodeId(2)))
    harness.time_out()
    assert harness.node.role is Role.PROSPECTIVE
    harness.step(vote_from(3, 3, granted=False, pre_vote=True))
    harness.step(vote_from(2, 3, granted=False, pre_vote=True))
    effects = harness.wait(TIMEOUTS.election_backoff_ms_max)
    assert harness.node.role is Role.FOLLOWER and harness.node.leader == 2
    assert [to for to, _ in requests(effects)] == [2]


def test_a_newer_epoch_in_any_response_deposes_a_leader() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.lead()
    effects = harness.step(EpochResponse(NodeId(3), 8, NodeId(2)))
    assert RoleChanged(Role.FOLLOWER, 8, NodeId(2)) in effects and harness.node.leading is None
    harness = NodeHarness(1, 2, 3)
    harness.lead()
    harness.step(EpochResponse(NodeId(3), 8, NO_NODE))
    assert harness.node.role is Role.UNATTACHED and harness.node.epoch == 8


def test_a_second_leader_of_an_epoch_is_rejected() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.step(BeginQuorumEpochRequest(3, NodeId(2)))
    [response] = replies(harness.step(BeginQuorumEpochRequest(3, NodeId(3))))
    assert isinstance(response, EpochResponse) and response.error is ErrorCode.INVALID_REQUEST
    [rejected] = harness.step(FetchResponse(NodeId(3), 3, NodeId(3)))
    assert isinstance(rejected, Rejected) and "both claim to lead epoch 3" in rejected.reason
    assert harness.node.leader == 2


def test_a_leader_resigns_when_a_majority_stops_fetching() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.lead()
    harness.wait(TIMEOUTS.check_quorum_ms - 1)
    assert harness.node.role is Role.LEADER
    harness.step(FetchRequest(TWO, 1, 0, 0, token=1))
    harness.wait(TIMEOUTS.check_quorum_ms - 1)
    assert harness.node.role is Role.LEADER
    effects = harness.wait(1)
    assert harness.node.role is Role.RESIGNED and harness.node.leader == NO_NODE
    assert {to for to, request in requests(effects) if isinstance(request, EndQuorumEpochRequest)} == {2, 3}


def test_a_resigning_leader_names_the_most_complete_log_first() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.lead()
    harness.propose(1)
    harness.step(FetchRequest(THREE, 1, 1, 1, token=1))
    harness.step(FetchRequest(TWO, 1, 0, 0, token=2))
    [(_, request), _] = requests(harness.node.resign(harness.now_ms))
    assert isinstance(request, EndQuorumEpochRequest) and request.successors == (3, 2)


def test_preferred_successors_campaign_in_turn_after_a_resignation() -> None:
    first, second = NodeHarness(1, 2, 3), NodeHarness(1, 2, 3)
    for harness in (first, second):
        harness.step(BeginQuorumEpochRequest(3, NodeId(2)))
    effects = first.step(EndQuorumEpochRequest(3, NodeId(2), (NodeId(1), NodeId(3))))
    assert first.node.role is Role.PROSPECTIVE and {to for to, _ in requests(effects)} == {2, 3}
    second.step(EndQuorumEpochRequest(3, NodeId(2), (NodeId(3), NodeId(1))))
    assert second.node.role is Role.FOLLOWER
    second.wait(49)
    assert second.node.role is Role.FOLLOWER
    second.wait(1)
    assert second.node.role is Role.PROSPECTIVE


def test_a_former_leader_does_not_lead_its_epoch_again_after_a_restart() -> None:
    harness = NodeHarness(1, 2, 3, state=ElectionState(6, NodeId(1), ONE))
    assert harness.node.role is Role.RESIGNED
    harness.time_out()
    assert harness.node.epoch == 7 and harness.node.role is Role.UNATTACHED


def test_a_restarted_follower_fetches_from_the_leader_it_knew() -> None:
    harness = NodeHarness(1, 2, 3, state=ElectionState(6, NodeId(3)))
    assert harness.node.role is Role.FOLLOWER and [to for to, _ in requests(harness.first)] == [3]


def test_an_observer_looks_for_the_leader_and_never_campaigns() -> None:
    harness = NodeHarness(2, 3, node_id=1)
    contacted = {to for _ in range(20) for to, _ in requests(harness.wait(1000))}
    assert contacted == {2, 3} and harness.node.role is Role.UNATTACHED
    harness.step(FetchResponse(NodeId(2), 4, NodeId(3), error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert harness.node.role is Role.FOLLOWER and harness.node.leader == 3
    harness.time_out()
    assert harness.node.role is Role.UNATTACHED


def test_every_role_can_be_entered_and_left() -> None:
    assert set(TRANSITIONS) == set(Role)
    assert {role for roles in TRANSITIONS.values() for role in roles} == set(Role)
    assert all(TRANSITIONS.values())
