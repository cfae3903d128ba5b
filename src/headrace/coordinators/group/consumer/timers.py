"""When a member of a consumer group is given up: its session ends, or it does not do in time what a rebalance asks of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordinators.group.consumer.groups import ConsumerGroup
from headrace.coordinators.group.consumer.members import Member, MemberState
from headrace.coordinators.group.consumer.targets import group_option

if TYPE_CHECKING:
    from headrace.coordinators.group.shard import GroupShard, Tx

SESSION_TIMER = "consumer-session"
REBALANCE_TIMER = "consumer-rebalance"
JOIN_TIMER = "consumer-join"  # of classic members: asked to join again
SYNC_TIMER = "consumer-sync"  # … joined, and not heard of since
_ALL = (SESSION_TIMER, REBALANCE_TIMER, JOIN_TIMER, SYNC_TIMER)


def arm_session(shard: GroupShard, group: ConsumerGroup, member: Member, now_ms: int, tx: Tx) -> None:
    if member.classic is not None:
        timeout_ms = member.classic.session_timeout_ms
    else:
        timeout_ms = group_option(shard, group.group_id, "consumer.session.timeout.ms")
    tx.arm((SESSION_TIMER, group.group_id, member.member_id), now_ms + timeout_ms)


def arm_rebalance(group: ConsumerGroup, member: Member, now_ms: int, tx: Tx) -> None:
    """A member that must revoke has so long to say that it did; those of the classic protocol have to join and sync instead."""
    timer = (REBALANCE_TIMER, group.group_id, member.member_id)
    if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
        tx.arm(timer, now_ms + member.rebalance_timeout_ms)
    else:
        tx.cancel(timer)


def cancel_all(group_id: str, member_id: str, tx: Tx) -> None:
    for word in _ALL:
        tx.cancel((word, group_id, member_id))
