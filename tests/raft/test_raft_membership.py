"""Changes of the voter set: one at a time, effective when written, undone by truncation."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from testkit.raft.memory_log import Entry, MemoryLog
from tests.raft.raft_harness import TIMEOUTS, NodeHarness, replies, requests

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NO_NODE, NodeId, Uuid
from headrace.raft.effects import AppendVoters, Committed, Effect, ElectionState, RoleChanged, Send
from headrace.raft.log_view import LogPoint
from headrace.raft.membership import VoterHistory
from headrace.raft.messages import FetchRequest, FetchResponse, VoteRequest, VoteResponse
from headrace.raft.node import RaftNode
from headrace.raft.roles import Role
from headrace.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet

ONE, TWO, THREE, FOUR = (ReplicaKey(NodeId(number)) for number in (1, 2, 3, 4))


def leading(*voters: int) -> NodeHarness:
    """Return a leader that has committed its leader-change record."""
    harness = NodeHarness(*voters)
    harness.node.history.reset(-1, harness.node.voters)
    harness.lead()
    harness.persist()
    for voter in voters[1:]:
        harness.step(FetchRequest(ReplicaKey(NodeId(voter)), harness.node.epoch, 1, harness.node.epoch, token=1))
    assert harness.node.high_watermark == 1
    return harness


def write(harness: NodeHarness, effects: list[Effect]) -> None:
    [append] = effects
    assert isinstance(append, AppendVoters)
    end = harness.log.append(Entry(harness.node.epoch, 0, append.voters))
    harness.node.proposed(end, append.voters)


def error_of(change: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        change()
    return ErrorCode(refused.value.code)


def test_a_new_voter_counts_as_soon_as_its_record_is_written() -> None:
    harness = leading(1)
    harness.step(FetchRequest(TWO, 1, 1, 1, token=1))
    write(harness, harness.node.add_voter(Voter(TWO), harness.now_ms))
    assert harness.node.voters.ids == [1, 2]
    assert harness.persist() == []  # one of two is no majority
    assert Committed(2) in harness.step(FetchRequest(TWO, 1, 2, 1, token=1))


def test_only_a_caught_up_observer_becomes_a_voter() -> None:
    harness = leading(1)
    assert error_of(lambda: harness.node.add_voter(Voter(FOUR), 0)) is ErrorCode.REQUEST_TIMED_OUT
    harness.step(FetchRequest(FOUR, 1, 0, 0, token=1))
    assert error_of(lambda: harness.node.add_voter(Voter(FOUR), harness.now_ms)) is ErrorCode.REQUEST_TIMED_OUT
    harness.step(FetchRequest(FOUR, 1, 1, 1, token=1))
    assert harness.node.add_voter(Voter(FOUR), harness.now_ms)
    assert error_of(lambda: harness.node.add_voter(Voter(FOUR), 4_000_000)) is ErrorCode.REQUEST_TIMED_OUT


def test_a_second_change_waits_for_the_first_to_be_committed() -> None:
    harness = leading(1, 2, 3)
    write(harness, harness.node.remove_voter(THREE))
    assert error_of(lambda: harness.node.remove_voter(TWO)) is ErrorCode.REQUEST_TIMED_OUT
    harness.persist()
    harness.step(FetchRequest(TWO, 1, 2, 1, token=1))
    assert harness.node.high_watermark == 2 and harness.node.remove_voter(TWO)


def test_changes_need_a_leader_that_has_committed_in_its_epoch_and_dynamic_voters() -> None:
    harness = NodeHarness(1, 2, 3)
    assert error_of(lambda: harness.node.remove_voter(TWO)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.lead()
    assert error_of(lambda: harness.node.remove_voter(TWO)) is ErrorCode.UNSUPPORTED_VERSION
    harness.node.history.reset(-1, harness.node.voters)
    assert error_of(lambda: harness.node.remove_voter(TWO)) is ErrorCode.REQUEST_TIMED_OUT


def test_impossible_changes_are_refused() -> None:
    harness = leading(1, 2, 3)
    assert error_of(lambda: harness.node.add_voter(Voter(TWO), 0)) is ErrorCode.DUPLICATE_VOTER
    assert error_of(lambda: harness.node.remove_voter(FOUR)) is ErrorCode.VOTER_NOT_FOUND
    assert error_of(lambda: harness.node.update_voter(Voter(FOUR))) is ErrorCode.VOTER_NOT_FOUND
    assert error_of(lambda: leading(1).node.remove_voter(ONE)) is ErrorCode.INVALID_REQUEST


def test_a_voter_can_change_its_endpoints() -> None:
    harness = leading(1, 2, 3)
    moved = Voter(TWO, (Endpoint("CONTROLLER", "elsewhere", 9093),))
    write(harness, harness.node.update_voter(moved))
    assert harness.node.voters.get(TWO.id) == moved and harness.node.voters.ids == [1, 2, 3]


def test_a_leader_that_removes_itself_resigns_when_the_removal_is_committed() -> None:
    harness = leading(1, 2, 3)
    write(harness, harness.node.remove_voter(ONE))
    harness.persist()
    harness.step(FetchRequest(TWO, 1, 2, 1, token=1))
    assert harness.node.role is Role.LEADER  # its own copy does not count any more
    effects = harness.step(FetchRequest(THREE, 1, 2, 1, token=1))
    assert Committed(2) in effects and RoleChanged(Role.RESIGNED, 1, NO_NODE) in effects


def test_a_removed_voter_campaigns_until_its_removal_is_known_to_be_committed() -> None:
    """Its log may be the longest: then it refuses its vote to the others, and only it can be elected."""
    harness = NodeHarness(1, 2, epochs=(1,))
    harness.log.append(Entry(1, 5, VoterSet.of_ids(2)))
    harness.node.voters_appended(1, VoterSet.of_ids(2))
    harness.persist()
    effects = harness.time_out()
    assert {to for to, request in requests(effects) if isinstance(request, VoteRequest)} == {2}


def test_voter_sets_are_undone_by_truncation() -> None:
    history = VoterHistory(VoterSet.of_ids(1))
    history.append(4, VoterSet.of_ids(1, 2))
    history.append(8, VoterSet.of_ids(1, 2, 3))
    assert history.current.ids == [1, 2, 3] and history.previous.ids == [1, 2]
    history.truncate(8)
    assert history.current.ids == [1, 2] and history.previous.ids == [1] and history.last_offset == 4
    history.truncate(0)
    assert history.current.ids == [1] and history.last_offset == -1


def test_a_snapshot_keeps_the_set_that_applies_at_its_end() -> None:
    history = VoterHistory(VoterSet.of_ids(1))
    for offset, size in ((4, 2), (8, 3), (12, 4)):
        history.append(offset, VoterSet.of_ids(*range(1, size + 1)))
    history.drop_before(10)
    assert history.previous.ids == [1, 2, 3]
    history.drop_before(13)
    assert history.current.ids == [1, 2, 3, 4] and history.last_offset == 12


def test_a_voter_with_another_disk_is_another_replica() -> None:
    disk, other = Uuid(b"a" * 16), Uuid(b"b" * 16)
    voters = VoterSet([Voter(ReplicaKey(NodeId(1), disk))])
    assert ReplicaKey(NodeId(1), disk) in voters and ONE in voters
    assert ReplicaKey(NodeId(1), other) not in voters


def described(number: int, *, highest: int = 1) -> Voter:
    """Return how a static voter describes itself."""
    endpoint = Endpoint("CONTROLLER", f"host{number}", 9093)
    return Voter(ReplicaKey(NodeId(number), Uuid(bytes([number]) * 16)), (endpoint,), 0, highest)


def leading_static(*voters: int) -> NodeHarness:
    harness = NodeHarness(*voters)
    harness.lead()
    harness.persist()
    for voter in voters[1:]:
        harness.step(FetchRequest(ReplicaKey(NodeId(voter)), harness.node.epoch, 1, harness.node.epoch, token=1))
    return harness


def test_static_voters_move_into_the_log_once_all_have_described_themselves() -> None:
    harness = leading_static(1, 2, 3)
    node, own = harness.node, described(1)
    assert node.update_voter(described(2)) == []
    assert error_of(lambda: node.upgrade_kraft_version(own)) is ErrorCode.REQUEST_TIMED_OUT
    assert node.update_voter(described(3)) == []
    [append] = effects = node.upgrade_kraft_version(own)
    assert append == AppendVoters(VoterSet([own, described(2), described(3)]), 1)
    write(harness, effects)
    assert node.kraft_version == 1 and node.voters == append.voters
    assert node.upgrade_kraft_version(own) == []
    assert error_of(lambda: node.remove_voter(described(2).key)) is ErrorCode.REQUEST_TIMED_OUT  # not committed yet
    node.truncated(node.history.last_offset)
    assert node.kraft_version == 0 and node.voters.ids == [1, 2, 3]


def test_a_voter_that_is_too_old_prevents_the_upgrade_and_strangers_cannot_describe_themselves() -> None:
    harness = leading_static(1, 2)
    harness.node.update_voter(described(2, highest=0))
    assert error_of(lambda: harness.node.upgrade_kraft_version(described(1))) is ErrorCode.INVALID_UPDATE_VERSION
    assert error_of(lambda: harness.node.update_voter(described(9))) is ErrorCode.VOTER_NOT_FOUND
    follower = NodeHarness(1, 2, 3)
    assert error_of(lambda: follower.node.upgrade_kraft_version(described(1))) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_of(lambda: follower.node.update_voter(described(2))) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_update_that_changes_nothing_writes_nothing() -> None:
    harness = leading(1, 2)
    assert harness.node.update_voter(Voter(TWO)) == []
    assert harness.node.update_voter(described(2)) == [AppendVoters(VoterSet([Voter(ONE), described(2)]))]


def test_a_replica_that_knows_no_voters_asks_the_bootstrap_servers_and_follows_whom_they_name() -> None:
    log, bootstrap = MemoryLog(), (NodeId(-2), NodeId(-3))
    node = RaftNode(FOUR, VoterHistory(VoterSet(())), ElectionState(), log, TIMEOUTS, Random(1), bootstrap)
    receivers = {send.to for send in node.start(0) if isinstance(send, Send)}
    for now_ms in range(0, 5000, 100):
        receivers |= {send.to for send in node.tick(now_ms) if isinstance(send, Send)}
    assert receivers == set(bootstrap) and not node.may_campaign
    answer = FetchResponse(NodeId(-2), 7, NodeId(1), 0, 0, error=ErrorCode.FENCED_LEADER_EPOCH)
    effects = node.step(answer, 5000)
    assert RoleChanged(Role.FOLLOWER, 7, NodeId(1)) in effects
    assert [effect.to for effect in effects if isinstance(effect, Send)] == [1]


def test_a_vote_without_a_directory_counts_for_the_same_node_with_one() -> None:
    with_directory = ReplicaKey(NodeId(2), Uuid(b"d" * 16))
    assert TWO.matches(with_directory) and with_directory.matches(TWO)
    assert not with_directory.matches(ReplicaKey(NodeId(2), Uuid(b"e" * 16))) and not TWO.matches(THREE)
    harness = NodeHarness(1, 2, 3, state=ElectionState(5, voted_for=TWO))
    [reply] = replies(harness.step(VoteRequest(5, with_directory, LogPoint(4, 10), False)))
    assert isinstance(reply, VoteResponse) and reply.granted
    [reply] = replies(harness.step(VoteRequest(5, THREE, LogPoint(4, 10), False)))
    assert isinstance(reply, VoteResponse) and not reply.granted
