"""Quorums of one to five voters under faults: Raft's properties hold, and planted mistakes are found."""

from __future__ import annotations

from typing import Any

import pytest
from testkit.raft.checks import PropertyViolated
from testkit.raft.loop import Faults, RaftLoop

from headrace.base.ids import NO_NODE
from headrace.raft import election_node
from headrace.raft.effects import Effect, ElectionState
from headrace.raft.leader import LeaderState
from headrace.raft.log_view import LogPoint
from headrace.raft.membership import VoterHistory
from headrace.raft.messages import FetchRequest, Message
from headrace.raft.node import RaftNode
from headrace.raft.roles import Role
from headrace.raft.voters import ReplicaKey, VoterSet

STEPS = 3000
SEEDS = 12
MUTATION_SEEDS = 300
PROGRESS_MS_MAX = 30_000
STATIC, DYNAMIC = Faults(), Faults(membership=0.08)


def run(seed: int, voters: int, spare: int, faults: Faults, make_node: Any = RaftNode) -> RaftLoop:
    """Run a quorum under faults, then without; it must commit again."""
    loop = RaftLoop(seed, voters, spare=spare, faults=faults, make_node=make_node)
    loop.run(STEPS)
    loop.heal()
    committed = len(loop.checks.committed)
    loop.run_until(lambda: len(loop.checks.committed) > committed + 5, PROGRESS_MS_MAX)
    return loop


@pytest.mark.parametrize(
    ("voters", "spare", "faults"),
    [(1, 0, STATIC), (3, 0, STATIC), (5, 0, STATIC), (3, 2, DYNAMIC), (1, 2, DYNAMIC)],
    ids=["one", "three", "five", "dynamic-three", "dynamic-one"],
)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_properties_of_raft_hold_and_the_quorum_recovers(
    voters: int, spare: int, faults: Faults, seed: int
) -> None:
    loop = run(seed, voters, spare, faults)
    assert loop.checks.committed and loop.checks.epochs


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (run(77, 3, 0, STATIC) for _ in range(2))
    assert first.checks.committed == second.checks.committed and first.now_ms == second.now_ms


class CountsBeforeDurable(RaftNode):
    """A leader that counts its own records before its fsync."""

    def proposed(self, end_offset: int, voters: VoterSet | None = None) -> list[Effect]:
        effects = super().proposed(end_offset, voters)
        assert self.leading is not None
        self.leading.persisted(end_offset)
        return effects


class FetchesBeforeDurable(RaftNode):
    """A follower that fetches more before its fsync."""

    def appended(self) -> list[Effect]:
        self._durable = self._log.end_offset
        return [*super().appended(), *self._fetch(0)]


class VotesBeforeDurable(RaftNode):
    """A voter that sends its vote before it is on disk."""

    def step(self, message: Message, now_ms: int) -> list[Effect]:
        effects = super().step(message, now_ms)
        early: list[Effect] = [reply for _, reply in self._grants]
        self._grants = []
        return [*effects, *early]


class TrustsFetchOffsets(RaftNode):
    """A leader that takes every claimed fetch offset for true."""

    def _on_fetch(self, request: FetchRequest, now_ms: int) -> list[Effect]:
        if self.leading is not None and request.epoch == self.epoch and request.offset >= 0:
            self.leading.fetched(request.replica, request.offset, self._log.end_offset, now_ms)
            return [*self._advance(now_ms), self._fetch_reply(request)]
        return super()._on_fetch(request, now_ms)


class TruncatesTooLittle(RaftNode):
    """A follower that keeps one record of those that the leader does not have."""

    def _truncate(self, diverging: LogPoint, now_ms: int) -> list[Effect]:
        return super()._truncate(LogPoint(self._log.last_epoch, diverging.offset + 1), now_ms)


def commit_any_epoch(state: LeaderState, voters: VoterSet) -> int:
    return voters.persisted_by_majority(state.end_offsets(voters))


def vote_for_any_log(state: ElectionState, role: Role, candidate: ReplicaKey, last: LogPoint, own: LogPoint) -> bool:
    return (state.voted_for or candidate) == candidate and state.leader == NO_NODE


def vote_for_everyone(state: ElectionState, role: Role, candidate: ReplicaKey, last: LogPoint, own: LogPoint) -> bool:
    return last >= own


def is_found(make_node: Any = RaftNode, dynamic: bool = False) -> bool:
    """Return whether a property is violated within MUTATION_SEEDS runs."""
    for seed in range(MUTATION_SEEDS):
        try:
            run(seed, 3, 2 if dynamic else 0, DYNAMIC if dynamic else STATIC, make_node)
        except PropertyViolated:
            return True
    return False


@pytest.mark.parametrize(
    "mutation", [CountsBeforeDurable, FetchesBeforeDurable, VotesBeforeDurable, TrustsFetchOffsets, TruncatesTooLittle]
)
def test_mistakes_in_a_node_are_found(mutation: type[RaftNode]) -> None:
    assert is_found(mutation)


def test_a_wrong_commit_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderState, "committed", commit_any_epoch)
    assert is_found()


@pytest.mark.parametrize("rule", [vote_for_any_log, vote_for_everyone])
def test_a_wrong_vote_is_found(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election_node, "may_vote", rule)
    assert is_found()


def test_overlapping_changes_of_the_voters_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VoterHistory, "last_offset", property(lambda self: -1))
    assert is_found(dynamic=True)
