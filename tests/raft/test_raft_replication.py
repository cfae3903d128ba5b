"""Replication: what is committed, how logs that diverged are repaired, and offsets that a peer must not claim."""

from __future__ import annotations

import pytest
from testkit.raft.memory_log import Entry, MemoryLog, Snapshot
from tests.raft.raft_harness import TIMEOUTS, NodeHarness, replies, requests

from headrace.base.errors import ErrorCode
from headrace.base.ids import NodeId
from headrace.raft.effects import AppendFetched, Committed, FetchSnapshot, Persist, Rejected, Truncate
from headrace.raft.log_view import Divergence, LogPoint, NeedsSnapshot, compare_with_leader, truncation_offset
from headrace.raft.messages import BeginQuorumEpochRequest, FetchRequest, FetchResponse, VoteRequest, VoteResponse
from headrace.raft.roles import Role
from headrace.raft.voters import ReplicaKey, VoterSet

TWO, THREE, NINE = (ReplicaKey(NodeId(number)) for number in (2, 3, 9))
LEADER = NodeId(2)


def log_of(*epochs: int, snapshot: LogPoint | None = None) -> MemoryLog:
    log = MemoryLog()
    if snapshot is not None:
        log.replace_by(Snapshot(snapshot, None, -1))
    for number, epoch in enumerate(epochs):
        log.append(Entry(epoch, number))
    return log


def fetched(harness: NodeHarness, replica: ReplicaKey, offset: int, epoch: int) -> FetchResponse:
    effects = harness.step(FetchRequest(replica, harness.node.epoch, offset, epoch, token=1))
    [response] = replies(effects)
    assert isinstance(response, FetchResponse)
    return response


def following(*epochs: int, high_watermark: int = 0) -> NodeHarness:
    """Return a follower of node 2 in epoch 9."""
    harness = NodeHarness(1, 2, 3, epochs=epochs)
    harness.step(BeginQuorumEpochRequest(9, LEADER))
    if high_watermark:
        harness.step(FetchResponse(LEADER, 9, LEADER, harness.log.end_offset, high_watermark))
    return harness


def is_granted(harness: NodeHarness, request: VoteRequest) -> bool:
    [response] = replies(harness.step(request))
    assert isinstance(response, VoteResponse)
    return response.granted


def test_a_record_commits_once_a_majority_has_it_on_disk() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.lead()
    assert fetched(harness, TWO, 1, 1).high_watermark == 0  # the leader's own copy is not durable yet
    assert harness.persist() == [Committed(1)]
    harness.propose(1)
    assert Committed(2) not in harness.persist()
    assert fetched(harness, THREE, 2, 1).high_watermark == 2


def test_records_of_older_epochs_commit_only_with_a_record_of_the_current_epoch() -> None:
    harness = NodeHarness(1, 2, 3, epochs=(1, 1))
    harness.lead()
    harness.persist()
    assert fetched(harness, TWO, 2, 1).high_watermark == 0
    assert fetched(harness, TWO, 3, harness.node.epoch).high_watermark == 3


def test_observers_do_not_count_for_a_commit() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.lead()
    harness.persist()
    assert fetched(harness, NINE, 1, 1).high_watermark == 0


def test_a_leader_refuses_fetches_of_other_epochs_and_impossible_positions() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.lead()
    epoch = harness.node.epoch
    for request, error in (
        (FetchRequest(TWO, epoch - 1, 0, 0), ErrorCode.FENCED_LEADER_EPOCH),
        (FetchRequest(TWO, epoch + 1, 0, 0), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (FetchRequest(TWO, epoch, -5, 0), ErrorCode.INVALID_REQUEST),
        (FetchRequest(ReplicaKey(NodeId(1)), epoch, 0, 0), ErrorCode.INVALID_REQUEST),
    ):
        [response] = replies(harness.step(request))
        assert isinstance(response, FetchResponse) and response.error is error
    assert fetched(harness, TWO, 1 << 60, epoch).diverging == LogPoint(epoch, 1)
    assert harness.persist() == []  # the claimed offset does not count


def test_a_node_that_does_not_lead_names_the_leader() -> None:
    harness = following()
    [response] = replies(harness.step(FetchRequest(THREE, 9, 0, 0)))
    assert isinstance(response, FetchResponse)
    assert (response.error, response.leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)


def test_a_replica_that_returns_with_an_empty_disk_starts_over() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.lead()
    for value in range(3):
        harness.propose(value)
    fetched(harness, TWO, 4, 1)
    fetched(harness, TWO, 0, 0)
    assert Committed(4) not in harness.persist()


@pytest.mark.parametrize(
    ("offset", "epoch", "diverging"),
    [
        (3, 2, None),
        (2, 1, None),
        (0, 0, None),
        (5, 4, None),
        (4, 2, LogPoint(2, 3)),
        (3, 3, LogPoint(2, 3)),
        (9, 4, LogPoint(4, 5)),
        (9, 8, LogPoint(4, 5)),
    ],
)
def test_a_leader_finds_where_a_log_diverges(offset: int, epoch: int, diverging: LogPoint | None) -> None:
    expected = None if diverging is None else Divergence(diverging)
    assert compare_with_leader(log_of(1, 1, 2, 4, 4), offset, epoch) == expected


def test_a_replica_behind_the_log_start_needs_the_snapshot() -> None:
    log = log_of(4, 4, snapshot=LogPoint(3, 10))
    assert compare_with_leader(log, 0, 0) == NeedsSnapshot(LogPoint(3, 10))
    assert compare_with_leader(log, 7, 3) == NeedsSnapshot(LogPoint(3, 10))
    assert compare_with_leader(log, 11, 2) == NeedsSnapshot(LogPoint(3, 10))
    assert compare_with_leader(log, 10, 3) is None and compare_with_leader(log, 12, 4) is None


def test_a_replica_truncates_to_the_last_point_both_logs_may_share() -> None:
    log = log_of(1, 1, 3, 3, 3)
    assert truncation_offset(log, LogPoint(3, 3)) == 3  # the same epoch, but the leader has less of it
    assert truncation_offset(log, LogPoint(3, 9)) == 5
    assert truncation_offset(log, LogPoint(2, 4)) == 2  # the epoch is unknown here
    assert truncation_offset(log, LogPoint(0, 0)) == 0


def test_a_follower_fetches_more_only_when_what_it_has_is_durable() -> None:
    harness = following(1)
    effects = harness.step(FetchResponse(LEADER, 9, LEADER, 1, high_watermark=1, records=b"records"))
    assert effects == [Committed(1), AppendFetched(b"records")]
    harness.log.append(Entry(9, 1))
    assert harness.node.appended() == [Persist(2, 0)]
    assert requests(harness.wait(500)) == []
    [(to, request)] = requests(harness.persist())
    assert isinstance(request, FetchRequest) and (to, request.offset) == (2, 2)


def test_a_follower_commits_at_most_what_it_has_on_disk() -> None:
    harness = following(1, 1, high_watermark=1000)
    assert harness.node.high_watermark == 2


def test_a_follower_truncates_what_the_leader_does_not_have() -> None:
    harness = following(1, 2, 2)
    effects = harness.step(FetchResponse(LEADER, 9, LEADER, 3, diverging=LogPoint(1, 1)))
    assert effects == [Truncate(1), Persist(1, 1)]
    harness.log.truncate(1)
    [(to, request)] = requests(harness.persist())
    assert isinstance(request, FetchRequest) and (to, request.offset, request.last_fetched_epoch) == (2, 1, 1)


def test_committed_records_are_never_truncated() -> None:
    harness = following(1, 2, 2, high_watermark=2)
    [rejected] = harness.step(FetchResponse(LEADER, 9, LEADER, 3, diverging=LogPoint(1, 1)))
    assert isinstance(rejected, Rejected) and "below the high watermark 2" in rejected.reason
    harness = following(1, 2, 2, high_watermark=2)
    [rejected] = harness.step(FetchResponse(LEADER, 9, LEADER, 3, snapshot=LogPoint(1, 1)))
    assert isinstance(rejected, Rejected)


def test_an_fsync_from_before_a_truncation_does_not_count() -> None:
    harness = following(1, 2, 2)
    harness.step(FetchResponse(LEADER, 9, LEADER, 3, diverging=LogPoint(1, 1)))
    harness.log.truncate(1)
    harness.log.append(Entry(9, 5))
    assert harness.node.persisted(3, 0, harness.now_ms) == []


def test_late_responses_and_those_of_other_nodes_are_ignored() -> None:
    harness = following(1, 1)
    for response in (
        FetchResponse(LEADER, 9, LEADER, 1, records=b"late"),
        FetchResponse(NodeId(3), 9, LEADER, 2, records=b"other"),
        FetchResponse(LEADER, 8, LEADER, 2, records=b"older"),
    ):
        assert harness.step(response) == []


def test_a_refused_fetch_is_sent_again() -> None:
    harness = following(1)
    assert requests(harness.wait(1000)) == []
    harness.step(FetchResponse(LEADER, 9, LEADER, 1, error=ErrorCode.UNKNOWN_SERVER_ERROR))
    assert [to for to, _ in requests(harness.wait(500))] == [2]


def test_a_follower_campaigns_early_if_the_leader_refuses_connections_and_no_voter_can_reach_it() -> None:
    harness = following(1)
    request = FetchRequest(harness.node.key, 9, 1, 1)
    assert harness.node.unanswered(LEADER, request, harness.now_ms, is_refused=False) == []
    assert [to for to, _ in requests(harness.wait(TIMEOUTS.retry_ms))] == [2]
    harness.node.unanswered(LEADER, request, harness.now_ms, is_refused=True)
    harness.wait(TIMEOUTS.election_ms // 10)
    assert harness.node.role is Role.PROSPECTIVE and harness.node.epoch == 9
    other = following(1, high_watermark=1)
    pre_vote = VoteRequest(9, ReplicaKey(NodeId(3)), LogPoint(1, 1), True)
    assert not is_granted(other, pre_vote)
    other.node.unanswered(LEADER, request, other.now_ms, is_refused=True)
    assert is_granted(other, pre_vote)


def test_requests_to_others_than_the_leader_may_stay_unanswered() -> None:
    harness = following(1)
    request = FetchRequest(harness.node.key, 9, 1, 1)
    assert harness.node.unanswered(NodeId(3), request, harness.now_ms, is_refused=True) == []
    begin = BeginQuorumEpochRequest(9, LEADER)
    assert harness.node.unanswered(LEADER, begin, harness.now_ms, is_refused=True) == []
    assert harness.node.role is Role.FOLLOWER


def test_a_divergence_where_the_log_ends_is_refused() -> None:
    harness = following(1, 2)
    [rejected] = harness.step(FetchResponse(LEADER, 9, LEADER, 2, diverging=LogPoint(2, 5)))
    assert isinstance(rejected, Rejected)


def test_a_truncation_that_removes_a_whole_batch_leaves_less_that_is_durable() -> None:
    harness = following(1, 2, 2, 2)
    harness.step(FetchResponse(LEADER, 9, LEADER, 4, diverging=LogPoint(2, 3)))
    harness.log.truncate(1)
    harness.node.truncated(1)
    harness.log.append(Entry(9, 5))
    assert requests(harness.node.persisted(1, 1, harness.now_ms)) == []
    assert [to for to, _ in requests(harness.node.persisted(2, 1, harness.now_ms))] == [2]


def test_a_reader_without_an_id_reads_the_log_but_does_not_count() -> None:
    harness = NodeHarness(1, 2, 3)
    harness.lead()
    harness.persist()
    [reply] = replies(harness.step(FetchRequest(ReplicaKey(NodeId(-1)), harness.node.epoch, 1, harness.node.epoch)))
    assert reply.error is ErrorCode.NONE and harness.node.high_watermark == 0
    assert harness.node.leading.observers(harness.node.voters) == {}


def test_an_installed_snapshot_replaces_the_log_and_its_voters() -> None:
    harness = following(1)
    point = LogPoint(7, 20)
    assert harness.step(FetchResponse(LEADER, 9, LEADER, 1, snapshot=point)) == [FetchSnapshot(LEADER, point)]
    harness.wait(1500)
    harness.node.snapshot_progressed(harness.now_ms)
    harness.wait(1500)
    assert harness.node.role is Role.FOLLOWER and harness.node.is_installing(point)
    harness.log.replace_by(Snapshot(point, VoterSet.of_ids(1, 2), 12))
    effects = harness.node.snapshot_installed(point, VoterSet.of_ids(1, 2), harness.now_ms)
    assert Committed(20) in effects and harness.node.voters.ids == [1, 2]
    [(_, request)] = requests(effects)
    assert isinstance(request, FetchRequest) and (request.offset, request.last_fetched_epoch) == (20, 7)


def test_a_snapshot_is_not_installed_once_the_leader_has_changed() -> None:
    harness = following(1)
    harness.step(FetchResponse(LEADER, 9, LEADER, 1, snapshot=LogPoint(7, 20)))
    harness.step(BeginQuorumEpochRequest(10, NodeId(3)))
    assert not harness.node.is_installing(LogPoint(7, 20))
