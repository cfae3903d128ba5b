"""Quorums of one to five voters under faults: Raft's properties hold, and planted mistakes are found."""

from __future__ import annotations

from typing import Any

import pytest
from testkit.raft.__main__ import main
from testkit.raft.checks import PropertyViolated
from testkit.raft.loop import Faults, run_and_recover
from testkit.raft.mutations import RAFT_MUTATIONS

from headrace.base.ids import NO_NODE
from headrace.raft import election_node
from headrace.raft.effects import Effect, ElectionState
from headrace.raft.log_view import LogPoint
from headrace.raft.membership import VoterHistory
from headrace.raft.messages import FetchRequest
from headrace.raft.node import RaftNode
from headrace.raft.roles import Role
from headrace.raft.voters import ReplicaKey

SEEDS = 12
MUTATION_SEEDS = 300
STATIC, DYNAMIC = Faults(), Faults(membership=0.08)


@pytest.mark.parametrize(
    ("voters", "spare", "faults"),
    [(1, 0, STATIC), (3, 0, STATIC), (5, 0, STATIC), (3, 2, DYNAMIC), (1, 2, DYNAMIC)],
    ids=["one", "three", "five", "dynamic-three", "dynamic-one"],
)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_properties_of_raft_hold_and_the_quorum_recovers(
    voters: int, spare: int, faults: Faults, seed: int
) -> None:
    loop = run_and_recover(seed, voters, spare=spare, faults=faults)
    assert loop.checks.committed and loop.checks.epochs


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (run_and_recover(77, 3, faults=STATIC) for _ in range(2))
    assert first.checks.committed == second.checks.committed and first.now_ms == second.now_ms


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


def vote_for_any_log(state: ElectionState, role: Role, candidate: ReplicaKey, last: LogPoint, own: LogPoint) -> bool:
    return (state.voted_for or candidate) == candidate and state.leader == NO_NODE


def vote_for_everyone(state: ElectionState, role: Role, candidate: ReplicaKey, last: LogPoint, own: LogPoint) -> bool:
    return last >= own


def is_found(make_node: Any = RaftNode, dynamic: bool = False) -> bool:
    """Return whether a property is violated within MUTATION_SEEDS runs."""
    for seed in range(MUTATION_SEEDS):
        try:
            faults = DYNAMIC if dynamic else STATIC
            run_and_recover(seed, 3, spare=2 if dynamic else 0, faults=faults, make_node=make_node)
        except PropertyViolated:
            return True
    return False


@pytest.mark.parametrize("mutation", [TrustsFetchOffsets, TruncatesTooLittle])
def test_mistakes_in_a_node_are_found(mutation: type[RaftNode]) -> None:
    assert is_found(mutation)


@pytest.mark.parametrize("name", sorted(RAFT_MUTATIONS))
def test_planted_faults_are_found(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", f"0-{MUTATION_SEEDS - 1}", "--mutation", name]) == 1
    assert f"{name} was found" in capsys.readouterr().out


@pytest.mark.parametrize("rule", [vote_for_any_log, vote_for_everyone])
def test_a_wrong_vote_is_found(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election_node, "may_vote", rule)
    assert is_found()


def test_overlapping_changes_of_the_voters_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VoterHistory, "last_offset", property(lambda self: -1))
    assert is_found(dynamic=True)
