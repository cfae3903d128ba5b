"""Handlers for consumer groups."""

from __future__ import annotations

from headrace.coordinators.group.consumer import groups
from headrace.coordinators.group.consumer.heartbeat import heartbeat, regex_searched
from headrace.coordinators.group.consumer.leaving import (
    SESSIONS_TIMER,
    classic_member_timed_out,
    rebalance_ended,
    session_ended,
    start_more_sessions,
    start_sessions,
)
from headrace.coordinators.group.consumer.regexes import REGEX_TIMER
from headrace.coordinators.group.consumer.timers import JOIN_TIMER, REBALANCE_TIMER, SESSION_TIMER, SYNC_TIMER
from headrace.coordinators.group.shard import Handlers
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.stored import consumer_groups as stored

CONSUMER_HANDLERS = Handlers(
    requests={ConsumerGroupHeartbeatRequest: heartbeat},
    appliers={
        stored.ConsumerGroupMetadataKey: groups.apply_group,
        stored.ConsumerGroupPartitionMetadataKey: groups.apply_old_metadata,
        stored.ConsumerGroupMemberMetadataKey: groups.apply_member,
        stored.ConsumerGroupTargetAssignmentMetadataKey: groups.apply_target_epoch,
        stored.ConsumerGroupTargetAssignmentMemberKey: groups.apply_target,
        stored.ConsumerGroupCurrentMemberAssignmentKey: groups.apply_current,
        stored.ConsumerGroupRegularExpressionKey: groups.apply_regex,
    },
    timers={
        SESSION_TIMER: session_ended,
        REBALANCE_TIMER: rebalance_ended,
        JOIN_TIMER: classic_member_timed_out,
        SYNC_TIMER: classic_member_timed_out,
        REGEX_TIMER: regex_searched,
        SESSIONS_TIMER: start_more_sessions,
    },
    on_leading=start_sessions,
)
