"""Timers that remove a member of a consumer group: the session timeout and the deadlines of a rebalance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordinators.group.consumer.groups import ConsumerGroup
from headrace.coordinators.group.consumer.members import Member, MemberState
from headrace.coordinators.group.consumer.targets import group_option

if TYPE_CHECKING:
    from headrace.coordinators.group.shard import GroupShard, Tx

SESSION_TIMER = "consumer-session"
REBALANCE_TIMER = "consumer-rebalance"
JOIN_TIMER = "consumer-join"  # for a classic member that has to rejoin
SYNC_TIMER = "consumer-sync"  # for a classic member that has joined and not synced yet
_ALL = (SESSION_TIMER, REBALANCE_TIMER, JOIN_TIMER, SYNC_TIMER)


def arm_session(shard: GroupShard, group: ConsumerGroup, member: Member, now_ms: int, tx: Tx) -> None:
    if member.classic is not None:
        timeout_ms = member.classic.session_timeout_ms
    else:
        timeout_ms = group_option(shard, group.group_id, "consumer.session.timeout.ms")
    tx.arm((SESSION_TIMER, group.group_id, member.member_id), now_ms + timeout_ms)


def arm_rebalance(group: ConsumerGroup, member: Member, now_ms: int, tx: Tx) -> None:
    """Arm the deadline for confirming a revocation, or cancel it if the member has nothing to revoke.

    Classic members have deadlines for joining and syncing instead.
    """
    timer = (REBALANCE_TIMER, group.group_id, member.member_id)
    if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
        tx.arm(timer, now_ms + member.rebalance_timeout_ms)
    else:
        tx.cancel(timer)


def cancel_all(group_id: str, member_id: str, tx: Tx) -> None:
    for word in _ALL:
        tx.cancel((word, group_id, member_id))
