"""Faults planted in replication and in the quorum, to see that the simulated cluster finds them.

Those of the quorum are in `testkit.raft.mutations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from msgspec.structs import replace

from headrace.controller import alter_partition, leadership
from headrace.replication import partition as partition_module
from headrace.replication.leader_state import LeaderState
from testkit.patching import replaced
from testkit.raft.mutations import commit_without_majority, count_before_sync, vote_before_sync


@contextmanager
def commit_without_followers() -> Iterator[None]:
    """Let the high watermark follow the leader's log end, whatever the in-sync replicas have."""

    def own_end_only(self: LeaderState, own_end: int, members: Any) -> int:
        return own_end

    with replaced(LeaderState, "replicated_end", own_end_only):
        yield


@contextmanager
def follow_without_truncation() -> Iterator[None]:
    """Let a follower keep the records that its leader does not have."""

    def keep(leader: Any, own: Any, log_end: int) -> int:
        return log_end

    with replaced(partition_module, "truncation_offset", keep):
        yield


@contextmanager
def accept_old_leaders() -> Iterator[None]:
    """Let the controller accept changes of the ISR from a broker that no longer leads, or that knows an older state."""

    def check_nothing(old: Any, broker_id: int, proposed: Any) -> None:
        return

    with replaced(alter_partition, "_check_leader", check_nothing):
        yield


@contextmanager
def elect_any_replica() -> Iterator[None]:
    """Let the controller elect replicas that may lack committed records, as if every topic allowed unclean elections."""
    election_rules = leadership.election_rules

    def unclean_rules(*arguments: Any, **options: Any) -> Any:
        return replace(election_rules(*arguments, **options), unclean=True)

    with replaced(leadership, "election_rules", unclean_rules):
        yield


@contextmanager
def trust_unclean_replicas() -> Iterator[None]:
    """Let the controller keep a broker eligible to lead after an unclean restart, though it may have lost records."""
    move_away = leadership.move_away

    def keep_eligible(context: Any, broker_id: int, tx: Any, **options: Any) -> None:
        move_away(context, broker_id, tx, **(options | {"unclean_shutdown": False}))

    with replaced(leadership, "move_away", keep_eligible):
        yield


CLUSTER_MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "commit-without-followers": commit_without_followers,
    "follow-without-truncation": follow_without_truncation,
    "accept-old-leaders": accept_old_leaders,
    "elect-any-replica": elect_any_replica,
    "trust-unclean-replicas": trust_unclean_replicas,
    "count-before-sync": count_before_sync,
    "vote-before-sync": vote_before_sync,
    "commit-without-majority": commit_without_majority,
}
