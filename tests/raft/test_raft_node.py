"""The commit rule and the order of effects, without a log or an event loop."""

from __future__ import annotations

import pytest

from headrace.base.ids import NodeId
from headrace.raft.messages import BecomeLeader, Committed, ElectionState, Persist, PersistElection
from headrace.raft.node import RaftNode, Role
from headrace.raft.voters import Voters


def node(voters: tuple[int, ...] = (1,), log_end: int = 0, epoch: int = 0) -> RaftNode:
    return RaftNode(NodeId(1), Voters(frozenset(map(NodeId, voters))), ElectionState(epoch), log_end)


def campaign(raft: RaftNode) -> ElectionState:
    """Start an election and return the state that must be persisted."""
    [persist] = raft.campaign()
    assert isinstance(persist, PersistElection)
    return persist.state


def test_a_quorum_of_one_leads_only_after_its_vote_is_on_disk() -> None:
    raft = node(epoch=4)
    [persist] = raft.campaign()
    assert persist == PersistElection(ElectionState(5, voted_for=NodeId(1))) and raft.role is Role.CANDIDATE
    [lead] = raft.election_persisted(persist.state)
    assert lead == BecomeLeader(5, (NodeId(1),), (NodeId(1),)) and raft.role is Role.LEADER


def test_records_commit_only_after_the_leader_has_persisted_them() -> None:
    raft = node()
    raft.election_persisted(campaign(raft))
    assert raft.proposed(3) == [Persist(3)] and raft.high_watermark == 0
    assert raft.persisted(2) == [Committed(2)]
    assert raft.persisted(3) == [Committed(3)]
    assert raft.persisted(3) == []


def test_records_of_older_epochs_commit_only_with_a_record_of_the_current_epoch() -> None:
    raft = node(voters=(1, 2, 3), log_end=10)
    raft.election_persisted(campaign(raft))
    raft.vote_granted(NodeId(2), 1)
    assert raft.role is Role.LEADER
    raft.proposed(11)
    assert raft.voter_persisted(NodeId(2), 10) == [] and raft.persisted(11) == []
    assert raft.voter_persisted(NodeId(2), 11) == [Committed(11)]


def test_votes_of_non_voters_and_of_older_epochs_are_ignored() -> None:
    raft = node(voters=(1, 2, 3))
    older = campaign(raft)
    assert raft.vote_granted(NodeId(9), 1) == [] and raft.vote_granted(NodeId(2), 0) == []
    newer = campaign(raft)
    assert raft.election_persisted(older) == [] and raft.role is Role.CANDIDATE
    assert raft.election_persisted(newer) == []
    [lead] = raft.vote_granted(NodeId(2), 2)
    assert isinstance(lead, BecomeLeader) and lead.granted_by == (1, 2)


def test_a_resigned_node_cannot_campaign() -> None:
    raft = node()
    raft.resign()
    with pytest.raises(AssertionError):
        raft.campaign()
