"""Faults planted in replication and in the quorum, to see that the simulated cluster finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from msgspec.structs import replace

from headrace.controller import alter_partition, leadership
from headrace.raft.leader import LeaderState as QuorumLeaderState
from headrace.raft.node import RaftNode
from headrace.replication import partition as partition_module
from headrace.replication.leader_state import LeaderState


@contextmanager
def _replaced(owner: Any, name: str, replacement: object) -> Iterator[None]:
    original = vars(owner)[name]
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def commit_without_followers() -> Iterator[None]:
    """Let the high watermark follow the leader's log end, whatever the in-sync replicas have."""

    def own_end_only(self: LeaderState, own_end: int, members: Any) -> int:
        return own_end

    with _replaced(LeaderState, "replicated_end", own_end_only):
        yield


@contextmanager
def follow_without_truncation() -> Iterator[None]:
    """Let a follower keep the records that its leader does not have."""

    def keep(leader: Any, own: Any, log_end: int) -> int:
        return log_end

    with _replaced(partition_module, "truncation_offset", keep):
        yield


@contextmanager
def accept_old_leaders() -> Iterator[None]:
    """Let the controller accept changes of the ISR from a broker that no longer leads, or that knows an older state."""

    def check_nothing(old: Any, broker_id: int, proposed: Any) -> None:
        return

    with _replaced(alter_partition, "_check_leader", check_nothing):
        yield


@contextmanager
def elect_any_replica() -> Iterator[None]:
    """Let the controller elect replicas that may lack committed records, as if every topic allowed unclean elections."""
    election_rules = leadership.election_rules

    def unclean_rules(*arguments: Any, **options: Any) -> Any:
        return replace(election_rules(*arguments, **options), unclean=True)

    with _replaced(leadership, "election_rules", unclean_rules):
        yield


@contextmanager
def trust_unclean_replicas() -> Iterator[None]:
    """Let the controller keep a broker eligible to lead after an unclean restart, though it may have lost records."""
    move_away = leadership.move_away

    def keep_eligible(context: Any, broker_id: int, tx: Any, **options: Any) -> None:
        move_away(context, broker_id, tx, **(options | {"unclean_shutdown": False}))

    with _replaced(leadership, "move_away", keep_eligible):
        yield


@contextmanager
def count_before_sync() -> Iterator[None]:
    """Let a voter count its records, and fetch past them, as soon as they are written, before they are on disk."""
    proposed, appended = RaftNode.proposed, RaftNode.appended

    def proposed_and_counted(self: RaftNode, end_offset: int, voters: Any = None) -> list[Any]:
        effects = proposed(self, end_offset, voters)
        self._durable = end_offset
        assert self.leading is not None
        self.leading.persisted(end_offset)
        return effects

    def appended_and_counted(self: RaftNode) -> list[Any]:
        self._durable = self._log.end_offset
        return [*appended(self), *self._fetch(self._retry_ms)]

    with (
        _replaced(RaftNode, "proposed", proposed_and_counted),
        _replaced(RaftNode, "appended", appended_and_counted),
    ):
        yield


@contextmanager
def commit_without_majority() -> Iterator[None]:
    """Let a leader of the quorum commit what it has on its own disk, whatever the other voters have."""

    def own_end_only(self: QuorumLeaderState, voters: Any) -> int:
        return self._own_end if self._own_end > self._epoch_start else -1

    with _replaced(QuorumLeaderState, "committed", own_end_only):
        yield


CLUSTER_MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "commit-without-followers": commit_without_followers,
    "follow-without-truncation": follow_without_truncation,
    "accept-old-leaders": accept_old_leaders,
    "elect-any-replica": elect_any_replica,
    "trust-unclean-replicas": trust_unclean_replicas,
    "count-before-sync": count_before_sync,
    "commit-without-majority": commit_without_majority,
}
