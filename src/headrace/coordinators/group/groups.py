"""ListGroups, DescribeGroups and DeleteGroups for groups of every type, including groups that only have offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.classic.group import ClassicGroup
from headrace.coordinators.group.classic.state import CLASSIC
from headrace.coordinators.group.classic.states import DEAD, State
from headrace.coordinators.group.offsets import offset_tombstone
from headrace.coordinators.group.ownership import Listed, owner_of
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsResponse

if TYPE_CHECKING:
    from headrace.coordinators.group.request import CoordinatorRequest
    from headrace.coordinators.group.shard import GroupShard, Tx

NOT_FOUND_VERSION_MIN = 6

Described = DescribeGroupsResponse.DescribedGroup
DescribedMember = DescribeGroupsResponse.DescribedGroupMember


def list_groups(shard: GroupShard, states: Sequence[str], types: Sequence[str]) -> list[Listed]:
    """Return the groups that match both filters. Filters ignore case, and an empty filter matches every group."""
    states, types = [state.lower() for state in states], [kind.lower() for kind in types]
    found = [group for owner in shard.owners for group in owner.listed()]
    owned = {group.group_id for group in found}
    found += [
        Listed(group_id, "", State.EMPTY.value, CLASSIC)
        for group_id in shard.offsets.group_ids()
        if group_id not in owned
    ]
    return [
        group
        for group in found
        if (not states or group.group_state.lower() in states) and (not types or group.group_type in types)
    ]


def describe_group(shard: GroupShard, group_id: str, version: int) -> Described:
    """Return the description of a classic group. Groups of other types have separate APIs."""
    group = shard.classic.groups.get(group_id)
    if group is None and shard.offsets.has(group_id) and owner_of(shard.owners, group_id) is None:
        group = ClassicGroup(group_id)
    if group is None:
        missing = Described(group_id=group_id, group_state=DEAD)
        if version >= NOT_FOUND_VERSION_MIN:
            kind = " not found." if owner_of(shard.owners, group_id) is None else " is not a classic group."
            missing.error_code, missing.error_message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id}{kind}"
        return missing
    chosen = group.protocol if group.state is State.STABLE else None
    return Described(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=chosen or "",
        members=[
            DescribedMember(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=b"" if chosen is None else member.metadata(chosen),
                member_assignment=member.assignment,
            )
            for _, member in sorted(group.members.items())
        ],
    )


def delete_group(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    """Delete the one group in the request with all its offsets, including those of open transactions.

    Raise KafkaError unless the group exists and is empty.
    """
    request = received.request
    assert isinstance(request, DeleteGroupsRequest)
    [group_id] = request.groups_names
    owner = owner_of(shard.owners, group_id)
    if owner is None and not shard.offsets.has(group_id):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if owner is not None:
        owner.check_delete(group_id)
    for topic_partition in shard.offsets.topic_partitions(group_id):
        tx.emit(offset_tombstone(group_id, topic_partition))
    (owner or shard.classic).delete(group_id, tx)
    tx.reply(tx.ticket, None)
