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
from headrace.coordinators.group.shard import GroupShard, Room, Tx
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.stored.offsets import GroupMetadataKey
from headrace.protocol.messages.sync_group import SyncGroupRequest

WELCOME = "classic-welcome"
WELCOMED_AT_ONCE = 500  # members per turn


def begin(shard: GroupShard, now_ms: int, tx: Tx) -> None:
    """Give each member a full session: no heartbeats arrived while there was no coordinator."""
    populated = tuple(group.id for group in shard.classic.groups.values() if group.members)
    _welcome(shard, populated, now_ms, tx)


def on_welcome_timer(shard: GroupShard, timer: tuple[str, tuple[str, ...]], now_ms: int, tx: Tx) -> None:
    _welcome(shard, timer[1], now_ms, tx)


def _welcome(shard: GroupShard, group_ids: tuple[str, ...], now_ms: int, tx: Tx) -> None:
    welcomed = 0
    for position, group_id in enumerate(group_ids):
        if welcomed >= WELCOMED_AT_ONCE:
            tx.arm((WELCOME, group_ids[position:]), now_ms + 1)
            return
        group = shard.classic.groups.get(group_id)
        if group is None:
            continue
        for member in group.members.values():
            prolong(group, member, now_ms, tx)
        welcomed += len(group.members)
        if len(group.members) > shard.settings.group_max_size and group.can_rebalance:
            # The limit was lowered; the next generation brings the group within it.
            draft = group.draft()
            prepare(shard, draft, now_ms, tx)
            shard.classic.keep(draft)


CLASSIC_ROOM = Room(
    verbs={JoinGroupRequest: join, SyncGroupRequest: sync, HeartbeatRequest: heartbeat, LeaveGroupRequest: leave},
    appliers={GroupMetadataKey: apply_group_metadata},
    alarms={
        JOIN: on_join_timer,
        SYNC: on_sync_timer,
        SESSION: on_session_timer,
        WELCOME: on_welcome_timer,
    },
    on_leading=begin,
)
