"""Faults planted in raft, to see that the loop of raft nodes or the simulated cluster finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from headrace.raft.effects import Effect
from headrace.raft.leader import LeaderState
from headrace.raft.messages import Message
from headrace.raft.node import RaftNode
from headrace.raft.voters import VoterSet
from testkit.patching import replaced


@contextmanager
def count_before_sync() -> Iterator[None]:
    """Let a voter count its records, and fetch past them, as soon as they are written, before they are on disk."""
    proposed, appended = RaftNode.proposed, RaftNode.appended

    def proposed_and_counted(self: RaftNode, end_offset: int, voters: VoterSet | None = None) -> list[Effect]:
        effects = proposed(self, end_offset, voters)
        self._durable = end_offset
        assert self.leading is not None
        self.leading.persisted(end_offset)
        return effects

    def appended_and_counted(self: RaftNode) -> list[Effect]:
        self._durable = self._log.end_offset
        return [*appended(self), *self._fetch(self._retry_ms)]

    with (
        replaced(RaftNode, "proposed", proposed_and_counted),
        replaced(RaftNode, "appended", appended_and_counted),
    ):
        yield


@contextmanager
def vote_before_sync() -> Iterator[None]:
    """Let a voter send its vote before it is on disk."""
    step = RaftNode.step

    def step_and_vote(self: RaftNode, message: Message, now_ms: int) -> list[Effect]:
        effects = step(self, message, now_ms)
        early: list[Effect] = [reply for _, reply in self._grants]
        self._grants = []
        return [*effects, *early]

    with replaced(RaftNode, "step", step_and_vote):
        yield


@contextmanager
def commit_without_majority() -> Iterator[None]:
    """Let a leader of the quorum commit what it has on its own disk, whatever the other voters have."""

    def own_end_only(self: LeaderState, voters: VoterSet) -> int:
        return self._own_end if self._own_end > self._epoch_start else -1

    with replaced(LeaderState, "committed", own_end_only):
        yield


@contextmanager
def commit_older_epochs() -> Iterator[None]:
    """Let a leader of the quorum commit records of older epochs as soon as a majority has them (Raft, figure 8)."""

    def held_by_majority(self: LeaderState, voters: VoterSet) -> int:
        return voters.persisted_by_majority(self.end_offsets(voters))

    with replaced(LeaderState, "committed", held_by_majority):
        yield


RAFT_MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "count-before-sync": count_before_sync,
    "vote-before-sync": vote_before_sync,
    "commit-without-majority": commit_without_majority,
    "commit-older-epochs": commit_older_epochs,
}
