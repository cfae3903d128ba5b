"""ConsumerGroupHeartbeat 0–1 (KIP-848, KIP-1082, KIP-1251): the one request of a consumer group's members.

A heartbeat takes four steps: (1) create or update the member, and bump the group's epoch if a subscription or the topics changed;
(2) compute a new target assignment if the group's epoch is ahead of the target's; (3) move the member one step towards its target;
(4) restart its session. Each step emits records of its changes; the response waits until they are committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import new_uuid, uuid_text
from headrace.coordinators.group.consumer.groups import ConsumerGroup
from headrace.coordinators.group.consumer.leaving import (
    find_group,
    find_member,
    find_static,
    leave,
)
from headrace.coordinators.group.consumer.members import (
    JOINING,
    LEAVING,
    LEAVING_TO_RETURN,
    Member,
    Owned,
    is_subset,
    reported_partitions,
    same_partitions,
    sorted_names,
)
from headrace.coordinators.group.consumer.reconciliation import Reconciliation, ReportedPartitions
from headrace.coordinators.group.consumer.record_values import (
    current_record,
    group_record,
    member_record,
    member_tombstones,
    old_metadata_tombstone,
    regex_tombstone,
    target_record,
)
from headrace.coordinators.group.consumer.regexes import check_regex, search_if_due, search_slice
from headrace.coordinators.group.consumer.targets import assign_if_due, group_option, topic_ids
from headrace.coordinators.group.consumer.timers import arm_rebalance, arm_session
from headrace.coordinators.group.migration import upgrade
from headrace.coordinators.group.request import CoordinatorRequest
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from headrace.base.ids import Uuid
    from headrace.coordinators.group.shard import GroupShard, Tx

OWN_ID_VERSION_MIN = 1  # from this version on, members generate their ids (KIP-1082)


def heartbeat(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, ConsumerGroupHeartbeatRequest)
    check_request(request, received.version, shard.settings.group_consumer_assignors)
    if request.member_epoch in (LEAVING, LEAVING_TO_RETURN):
        leave(shard, request, now_ms, tx)
    else:
        _beat(shard, received, request, now_ms, tx)


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    epoch, wrong = request.member_epoch, None
    if not request.member_id and (version >= OWN_ID_VERSION_MIN or epoch > 0 or epoch == LEAVING):
        wrong = "MemberId can't be empty."
    elif not request.group_id:
        wrong = "GroupId can't be empty."
    elif request.instance_id == "":
        wrong = "InstanceId can't be empty."
    elif request.rack_id == "":
        wrong = "RackId can't be empty."
    elif epoch == JOINING:
        if request.rebalance_timeout_ms == -1:
            wrong = "RebalanceTimeoutMs must be provided in first request."
        elif request.topic_partitions is None or request.topic_partitions:
            wrong = "TopicPartitions must be empty when (re-)joining."
        elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            wrong = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif epoch == LEAVING_TO_RETURN and request.instance_id is None:
        wrong = "InstanceId can't be null."
    elif epoch < LEAVING_TO_RETURN:
        wrong = "MemberEpoch is invalid."
    if wrong is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, wrong)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


class _Changes(NamedTuple):
    names: bool
    regex: bool
    assigns_again: bool  # whether a new assignment is needed without waiting for a search


def _beat(
    shard: GroupShard, received: CoordinatorRequest, request: ConsumerGroupHeartbeatRequest, now_ms: int, tx: Tx
) -> None:
    joins = request.member_epoch == JOINING
    group = _open_group(shard, request.group_id, joins, now_ms, tx)
    reported = None if request.topic_partitions is None else reported_partitions(request.topic_partitions)
    check_size(shard, group, request.member_id)
    before = _find(shard, group, request, reported, joins, tx)
    changes = _update_member(shard, group, before, received, request, tx)
    found_topics = search_if_due(shard, group, received, now_ms, tx)
    refresh_epoch(shard, group, changes.assigns_again or found_topics, tx)
    assign_if_due(shard, group, now_ms, tx)
    member = reconcile(shard, group, before.member_id, reported, changes.names or changes.regex, now_ms, tx)
    arm_session(shard, group, member, now_ms, tx)
    is_full = (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and reported is not None
    )
    includes_assignment = joins or is_full or not same_partitions(before.assigned, member.assigned)
    response = ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=group_option(shard, group.group_id, "consumer.heartbeat.interval.ms"),
        assignment=_assignment(member.assigned) if includes_assignment else None,
    )
    tx.reply(tx.ticket, response)


def _assignment(assigned: Owned) -> ConsumerGroupHeartbeatResponse.Assignment:
    topics = [
        ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=topic, partitions=sorted(assigned[topic]))
        for topic in sorted(assigned)
    ]
    return ConsumerGroupHeartbeatResponse.Assignment(topic_partitions=topics)


# --- (1) the group and the member


def _open_group(shard: GroupShard, group_id: str, joins: bool, now_ms: int, tx: Tx) -> ConsumerGroup:
    if not joins:
        return find_group(shard, group_id)
    if shard.classic.has(group_id):
        if shard.classic.is_empty(group_id):
            shard.classic.delete(group_id, tx)
        else:
            upgrade(shard, group_id, now_ms, tx)
    return shard.consumers.group(group_id)


def check_size(shard: GroupShard, group: ConsumerGroup, member_id: str) -> None:
    most = shard.settings.group_consumer_max_size
    if len(group.members) >= most and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f"The consumer group has reached its maximum capacity of {most} members."
        )


def _find(
    shard: GroupShard,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    reported: dict[Uuid, dict[int, None]] | None,
    joins: bool,
    tx: Tx,
) -> Member:
    """Return the member as it was before this heartbeat.

    A new member has no record yet; a member that replaces a static one has.
    """
    if not joins:
        if request.instance_id is None:
            member = find_member(group, request.member_id)
        else:
            member = find_static(group, request.instance_id, request.member_id)
        _check_epoch(member, request.member_epoch, reported)
        return member
    member_id = request.member_id or uuid_text(new_uuid(shard.random))
    held = None if request.instance_id is None else group.static.get(request.instance_id)
    if held is None or held == member_id:
        return group.members.get(member_id) or Member(member_id)
    old = group.members[held]
    if old.epoch != LEAVING_TO_RETURN and old.classic is None:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {old.instance_id} cannot join the group because the instance id "
            f"is owned by {old.member_id} member.",
        )
    return replace_static(group, old, member_id, tx)


def _check_epoch(member: Member, epoch: int, reported: ReportedPartitions | None) -> None:
    if epoch == member.epoch:
        return
    if (
        epoch == member.previous_epoch
        and epoch < member.epoch
        and reported is not None
        and is_subset(reported, member.assigned)
    ):
        return  # the response with the new epoch was lost
    compared = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {compared} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def replace_static(group: ConsumerGroup, old: Member, member_id: str, tx: Tx) -> Member:
    """Transfer everything that a static member had to the id with which it rejoined."""
    new = replace(old, member_id=member_id, epoch=0, previous_epoch=0)
    target = group.target(old.member_id)
    for record in member_tombstones(group.group_id, old.member_id):
        tx.emit(record)
    tx.emit(member_record(group.group_id, new))
    tx.emit(target_record(group.group_id, member_id, target))
    tx.emit(current_record(group.group_id, new))
    return new


def _update_member(
    shard: GroupShard,
    group: ConsumerGroup,
    before: Member,
    received: CoordinatorRequest,
    request: ConsumerGroupHeartbeatRequest,
    tx: Tx,
) -> _Changes:
    after = replace(before, client_id=received.client_id, client_host=received.client_host, classic=None)
    if request.instance_id is not None:
        after = replace(after, instance_id=request.instance_id)
    if request.rack_id is not None:
        after = replace(after, rack_id=request.rack_id)
    if request.rebalance_timeout_ms != -1:
        after = replace(after, rebalance_timeout_ms=request.rebalance_timeout_ms)
    if request.server_assignor is not None:
        after = replace(after, server_assignor=request.server_assignor)
    if request.subscribed_topic_names is not None:
        after = replace(after, names=sorted_names(request.subscribed_topic_names))
    if request.subscribed_topic_regex is not None:
        after = replace(after, regex=request.subscribed_topic_regex)
    if after.regex != before.regex and after.regex:
        check_regex(shard, after.regex)
    if after != group.members.get(after.member_id):
        tx.emit(member_record(group.group_id, after))
    if before.regex and before.regex not in group.regexes:
        tx.emit(regex_tombstone(group.group_id, before.regex))
    names, regex = after.names != before.names, after.regex != before.regex
    settled = regex and (not after.regex or after.regex in group.resolved)
    return _Changes(names, regex, names or settled)


def refresh_epoch(shard: GroupShard, group: ConsumerGroup, bump: bool, tx: Tx) -> None:
    """Bump the group's epoch if `bump` is set or its topics have changed."""
    image, epochs = shard.image(), group.epochs
    if not bump and epochs.group > 0 and group.seen.get("") == image.offset:
        return
    group.seen[""] = image.offset
    metadata_hash = shard.consumers.hashes.of_group(group.names(), image)
    bump |= metadata_hash != epochs.metadata_hash
    if bump or epochs.group == 0:
        # As in Kafka, a new group starts at epoch 1, which is bumped at once if it has topics.
        tx.emit(group_record(group.group_id, max(epochs.group, 1) + bump, metadata_hash))
    if epochs.has_old_metadata:
        tx.emit(old_metadata_tombstone(group.group_id))


def regex_searched(shard: GroupShard, timer: tuple[str, str], now_ms: int, tx: Tx) -> None:
    group = shard.consumers.groups.get(timer[1])
    if group is not None and len(group.search) and search_slice(shard, group, now_ms, tx):
        refresh_epoch(shard, group, True, tx)


# --- (3) towards the target


def reconcile(
    shard: GroupShard,
    group: ConsumerGroup,
    member_id: str,
    reported: ReportedPartitions | None,
    subscription_changed: bool,
    now_ms: int,
    tx: Tx,
) -> Member:
    member, epoch = group.members[member_id], group.epochs.assignment
    if not subscription_changed and member.is_reconciled(epoch):
        return member
    subscribed = frozenset(topic_ids(group.subscription(member), shard.image()))
    after = Reconciliation(
        member,
        group.target(member_id),
        epoch,
        subscribed.__contains__,
        lambda topic, partition: group.owners.get((topic, partition)) not in (None, member_id),
        reported,
    ).next(subscription_changed)
    if after != member:
        tx.emit(current_record(group.group_id, after))
        arm_rebalance(group, after, now_ms, tx)
    return group.members[member_id]
