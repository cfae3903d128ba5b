"""The ISR of a led partition: proposals, the controller's responses, and what the leader assumes in between."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ErrorCode
from headrace.replication.isr import IN_DOUBT_MS, PROPOSAL_PAUSE_MS, Accepted, Isr, Member, Proposal, may_join
from headrace.replication.leader_state import Follower


def epoch_of(broker_id: int) -> int | None:
    return 100 + broker_id


def make_isr(*members: int, recovering: bool = False) -> Isr:
    return Isr(1, members, 5, 10, recovering=recovering)


def test_an_expansion_counts_at_once_and_a_shrink_once_accepted() -> None:
    isr = make_isr(1, 2)
    grown = isr.propose([3], [], epoch_of, 0)
    assert grown == Proposal((Member(1, 101), Member(2, 102), Member(3, 103)), 5, 10)
    assert (isr.members, isr.maximal) == ((1, 2), {1, 2, 3})
    assert isr.accepted(grown, Accepted((1, 2, 3), 5, 11))
    shrunk = isr.propose([], [2], epoch_of, 0)
    assert (shrunk.broker_ids, isr.members, isr.maximal) == ((1, 3), (1, 2, 3), {1, 2, 3})
    assert isr.accepted(shrunk, Accepted((1, 3), 5, 12))
    assert (isr.members, isr.maximal, isr.partition_epoch) == ((1, 3), {1, 3}, 12)


def test_only_one_proposal_is_under_way() -> None:
    isr = make_isr(1, 2)
    assert isr.propose([3], [], epoch_of, 0) is not None
    assert isr.propose([], [2], epoch_of, 0) is None


def test_nothing_is_proposed_if_nothing_changes_and_the_leader_never_removes_itself() -> None:
    isr = make_isr(1, 2)
    assert isr.propose([2], [1, 3], epoch_of, 0) is None


def test_a_recovering_leader_reports_that_it_has_recovered() -> None:
    isr = make_isr(1, recovering=True)
    proposal = isr.propose([], [], epoch_of, 0)
    assert proposal.broker_ids == (1,)
    assert isr.accepted(proposal, Accepted((1,), 5, 11, recovering=False))
    assert isr.propose([], [], epoch_of, 0) is None


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_refused_change_is_withdrawn_and_proposed_again_after_a_pause(code: ErrorCode) -> None:
    isr = make_isr(1, 2)
    assert not isr.refused(isr.propose([3], [], epoch_of, 0), code, now_ms=50)
    assert (isr.pending, isr.maximal) == (None, {1, 2})
    assert isr.propose([3], [], epoch_of, 50 + PROPOSAL_PAUSE_MS - 1) is None
    assert isr.propose([3], [], epoch_of, 50 + PROPOSAL_PAUSE_MS) is not None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    ],
)
def test_a_leader_that_is_behind_waits_for_metadata_and_assumes_the_larger_set_until_then(code: ErrorCode) -> None:
    isr = make_isr(1, 2)
    assert not isr.refused(isr.propose([3], [], epoch_of, 0), code, 0)
    assert isr.maximal == {1, 2, 3} and isr.propose([], [2], epoch_of, 10_000) is None
    isr.published((1, 2), 10, recovering=False)  # the state it knows already
    assert isr.maximal == {1, 2, 3}
    isr.published((1,), 11, recovering=False)
    assert (isr.members, isr.maximal, isr.pending) == ((1,), {1}, None)


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_a_proposal_with_an_unknown_outcome_is_sent_again(code: ErrorCode) -> None:
    isr = make_isr(1, 2)
    assert isr.refused(isr.propose([3], [], epoch_of, 0), code, 0)
    assert isr.maximal == {1, 2, 3}


def test_metadata_ends_the_pending_proposal_and_its_late_response_is_ignored() -> None:
    isr = make_isr(1, 2)
    proposal = isr.propose([3], [], epoch_of, 0)
    isr.published((1,), 12, recovering=False)
    assert not isr.accepted(proposal, Accepted((1, 2, 3), 5, 11))
    assert not isr.refused(proposal, ErrorCode.NOT_CONTROLLER, 0)
    assert (isr.members, isr.partition_epoch) == ((1,), 12)


def test_responses_that_contradict_this_leader_are_left_to_the_metadata() -> None:
    isr = make_isr(1, 2)
    proposal = isr.propose([3], [], epoch_of, 0)
    for wrong in (Accepted((1, 2, 3), 6, 11), Accepted((1, 2, 3), 5, 9), Accepted((2, 3), 5, 11)):
        assert not isr.accepted(proposal, wrong)
    assert isr.accepted(proposal, Accepted((1, 2, 3), 5, 10))  # the controller had this ISR already


def test_a_follower_may_join_with_all_committed_records_and_all_of_earlier_epochs() -> None:
    follower = Follower(0)
    follower.log_end, follower.broker_epoch = 20, 102
    assert may_join(follower, 102, 20, 20)
    assert not may_join(follower, 102, 21, 20)
    assert not may_join(follower, 102, 20, 21)
    assert not may_join(follower, None, 20, 20)  # fenced or shutting down
    assert not may_join(follower, 103, 20, 20)  # restarted since it fetched
    follower.broker_epoch = -1
    assert may_join(follower, 103, 20, 20)


def test_a_refusal_does_not_withdraw_a_proposal_that_an_earlier_request_may_still_carry_out() -> None:
    isr = make_isr(1, 2)
    proposal = isr.propose([3], [], epoch_of, 0)
    assert isr.refused(proposal, ErrorCode.REQUEST_TIMED_OUT, 0)
    assert isr.refused(proposal, ErrorCode.INELIGIBLE_REPLICA, IN_DOUBT_MS - 1)
    assert isr.maximal == {1, 2, 3}
    assert not isr.refused(proposal, ErrorCode.INELIGIBLE_REPLICA, IN_DOUBT_MS)
    assert isr.maximal == {1, 2}


class ModelController:
    """A controller that also changes the ISR by itself, and a metadata log that the leader reads late."""

    def __init__(self) -> None:
        self.log: list[tuple[tuple[int, ...], int]] = [((1, 2, 3), 10)]

    @property
    def state(self) -> tuple[tuple[int, ...], int]:
        return self.log[-1]

    def alter(self, proposal: Proposal, random: Random) -> ErrorCode | Accepted:
        _, epoch = self.state
        if proposal.partition_epoch != epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if random.random() < 0.2:
            return ErrorCode.INELIGIBLE_REPLICA
        self.log.append((proposal.broker_ids, epoch + 1))
        return Accepted(proposal.broker_ids, 5, epoch + 1)

    def fence(self, broker: int) -> None:
        isr, epoch = self.state
        if broker in isr:
            self.log.append((tuple(one for one in isr if one != broker), epoch + 1))


class ModelLeader:
    """A leader with one request under way at a time. Requests that it has given up may still reach the controller."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.controller = ModelController()
        self.isr = Isr(1, *(self.controller.state[0], 5, self.controller.state[1]), recovering=False)
        self.read, self.now_ms = 1, 0
        self.under_way: Proposal | None = None
        self.answer: ErrorCode | Accepted | None = None
        self.given_up: list[tuple[Proposal, int]] = []  # with the time at which the network drops it

    def step(self) -> None:
        random, isr, controller = self.random, self.isr, self.controller
        self.now_ms += random.randrange(IN_DOUBT_MS // 10)
        self.given_up = [one for one in self.given_up if one[1] > self.now_ms]
        broker = random.choice([2, 3])
        match random.randrange(8):
            case 0:
                isr.propose([broker], [], epoch_of, self.now_ms)
            case 1:
                isr.propose([], [broker], epoch_of, self.now_ms)
            case 2 if self.under_way is None:
                self.under_way, self.answer = isr.pending, None
            case 3 if self.under_way is not None and self.answer is None:
                self.answer = controller.alter(self.under_way, random)
            case 4 if self.under_way is not None:
                self.finish(self.under_way)
            case 5 if self.given_up:
                controller.alter(random.choice(self.given_up)[0], random)
            case 6:
                controller.fence(broker)
            case _ if self.read < len(controller.log):
                isr.published(*controller.log[self.read], recovering=False)
                self.read += 1

    def finish(self, proposal: Proposal) -> None:
        """Deliver the response, or give the request up if there is none yet or it gets lost."""
        answer, self.under_way = self.answer, None
        if answer is None or self.random.random() < 0.3:
            self.given_up.append((proposal, self.now_ms + IN_DOUBT_MS))
            self.isr.refused(proposal, ErrorCode.REQUEST_TIMED_OUT, self.now_ms)
        elif isinstance(answer, Accepted):
            self.isr.accepted(proposal, answer)
        else:
            self.isr.refused(proposal, answer, self.now_ms)


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 150))
def test_the_leader_never_assumes_fewer_members_than_the_controller_has(seed: int, steps: int) -> None:
    leader = ModelLeader(Random(seed))
    for _ in range(steps):
        leader.step()
        assert set(leader.controller.state[0]) <= leader.isr.maximal, f"{leader.controller.log} {leader.isr.pending}"
