"""Handlers for consumer groups."""

from __future__ import annotations

from headrace.coordinators.group.consumer import groups
from headrace.coordinators.group.consumer.heartbeat import heartbeat, regex_searched
from headrace.coordinators.group.consumer.leaving import (
    WELCOME_TIMER,
    guest_ended,
    rebalance_ended,
    session_ended,
    welcome_all,
    welcome_more,
)
from headrace.coordinators.group.consumer.regexes import REGEX_TIMER
from headrace.coordinators.group.consumer.timers import JOIN_TIMER, REBALANCE_TIMER, SESSION_TIMER, SYNC_TIMER
from headrace.coordinators.group.shard import Room
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.stored import consumer_groups as stored

CONSUMER_ROOM = Room(
    verbs={ConsumerGroupHeartbeatRequest: heartbeat},
    appliers={
        stored.ConsumerGroupMetadataKey: groups.apply_group,
        stored.ConsumerGroupPartitionMetadataKey: groups.apply_old_metadata,
        stored.ConsumerGroupMemberMetadataKey: groups.apply_member,
        stored.ConsumerGroupTargetAssignmentMetadataKey: groups.apply_target_epoch,
        stored.ConsumerGroupTargetAssignmentMemberKey: groups.apply_target,
        stored.ConsumerGroupCurrentMemberAssignmentKey: groups.apply_current,
        stored.ConsumerGroupRegularExpressionKey: groups.apply_regex,
    },
    alarms={
        SESSION_TIMER: session_ended,
        REBALANCE_TIMER: rebalance_ended,
        JOIN_TIMER: guest_ended,
        SYNC_TIMER: guest_ended,
        REGEX_TIMER: regex_searched,
        WELCOME_TIMER: welcome_more,
    },
    on_leading=welcome_all,
)
