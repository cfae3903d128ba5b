"""Handlers for classic groups, and what a new coordinator does first."""

from __future__ import annotations

from headrace.coordinators.group.classic.joining import join
from headrace.coordinators.group.classic.membership import heartbeat, leave, sync
from headrace.coordinators.group.classic.rebalance import (
    JOIN,
    SYNC,
    on_join_timer,
    on_session_timer,
    on_sync_timer,
    prepare,
)
from headrace.coordinators.group.classic.state import SESSION, apply_group_metadata, prolong
from headrace.coordinators.group.shard import GroupShard, Handlers, Tx
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.stored.offsets import GroupMetadataKey
from headrace.protocol.messages.sync_group import SyncGroupRequest

SESSIONS_TIMER = "classic-sessions"
SESSIONS_PER_TURN = 500  # members per turn


def begin(shard: GroupShard, now_ms: int, tx: Tx) -> None:
    """Give each member a full session: no heartbeats arrived while there was no coordinator."""
    populated = tuple(group.id for group in shard.classic.groups.values() if group.members)
    _start_sessions(shard, populated, now_ms, tx)


def on_sessions_timer(shard: GroupShard, timer: tuple[str, tuple[str, ...]], now_ms: int, tx: Tx) -> None:
    _start_sessions(shard, timer[1], now_ms, tx)


def _start_sessions(shard: GroupShard, group_ids: tuple[str, ...], now_ms: int, tx: Tx) -> None:
    started = 0
    for position, group_id in enumerate(group_ids):
        if started >= SESSIONS_PER_TURN:
            tx.arm((SESSIONS_TIMER, group_ids[position:]), now_ms + 1)
            return
        group = shard.classic.groups.get(group_id)
        if group is None:
            continue
        for member in group.members.values():
            prolong(group, member, now_ms, tx)
        started += len(group.members)
        if len(group.members) > shard.settings.group_max_size and group.can_rebalance:
            # The limit was lowered; the next generation brings the group within it.
            draft = group.draft()
            prepare(shard, draft, now_ms, tx)
            shard.classic.keep(draft)


CLASSIC_HANDLERS = Handlers(
    requests={JoinGroupRequest: join, SyncGroupRequest: sync, HeartbeatRequest: heartbeat, LeaveGroupRequest: leave},
    appliers={GroupMetadataKey: apply_group_metadata},
    timers={
        JOIN: on_join_timer,
        SYNC: on_sync_timer,
        SESSION: on_session_timer,
        SESSIONS_TIMER: on_sessions_timer,
    },
    on_leading=begin,
)
