"""Groups as an administrator sees them: members, committed offsets, and how to change those."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.group.commits import BY_NAME_VERSION_MAX, MANY_GROUPS_VERSION_MIN
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.coordinator_lookup import find_coordinator
from headrace.client.wire.frames import UnexpectedResponse
from headrace.protocol.compiler import codec
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from headrace.protocol.messages.embedded import ConsumerProtocolAssignment
from headrace.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

ASSIGNMENT_VERSION_MAX = 3


class ListedGroup(NamedTuple):
    """A group as its coordinator lists it."""

    group: str
    type: str  # "classic", "consumer" …; empty if the broker does not report it
    state: str  # "Stable", "Empty" …; empty if the broker does not report it
    protocol_type: str  # "consumer" for groups of consumers; empty for a group that only commits offsets


class Member(NamedTuple):
    """A member of a group with its partitions."""

    member_id: str
    instance_id: str | None  # group.instance.id of a static member, else None
    client_id: str
    host: str
    assigned: list[TopicPartition]  # empty if the members of a classic group are not consumers
    target: list[TopicPartition] | None = None  # target assignment; None in a classic group
    epoch: int | None = None  # epoch of the member; None in a classic group


class GroupInfo(NamedTuple):
    """A group as its coordinator describes it."""

    group: str
    type: str  # "classic" or "consumer"
    state: str  # "Stable", "Empty" …
    assignor: str  # empty if a classic group has no members
    members: list[Member]
    coordinator: int  # id of the broker
    epoch: int | None = None  # None for a classic group
    target_epoch: int | None = None  # epoch of the target assignment; None for a classic group

    def owners(self) -> dict[TopicPartition, Member]:
        """Return the member that each assigned partition belongs to."""
        return {partition: member for member in self.members for partition in member.assigned}


class Committed(NamedTuple):
    """An offset that a group has committed, with the `metadata` of the application."""

    offset: int  # offset of the next record to read
    leader_epoch: int  # leader epoch of the last record read; -1: unknown
    metadata: str


async def list_groups(cluster: Cluster, states: Sequence[str], types: Sequence[str]) -> list[ListedGroup]:
    """Return the groups of all brokers; each broker knows those that it coordinates."""
    listed = []
    for node_id in await cluster.brokers():
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        response: ListGroupsResponse = await (await cluster.broker(node_id)).request(request)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), f"the groups of broker {node_id}")
        listed += [
            ListedGroup(one.group_id, one.group_type, one.group_state, one.protocol_type) for one in response.groups
        ]
    return sorted(listed)


async def describe_group(cluster: Cluster, group: str) -> GroupInfo:
    """Describe a group. Raise KafkaError GROUP_ID_NOT_FOUND if it does not exist."""
    node_id, connection = await find_coordinator(cluster, group)
    try:
        request = ConsumerGroupDescribeRequest(group_ids=[group])
        modern: ConsumerGroupDescribeResponse = await connection.request(request)
    except UnexpectedResponse:
        pass  # brokers before KIP-848 only know classic groups
    else:
        code = ErrorCode(modern.groups[0].error_code)
        if code is ErrorCode.NONE:
            return _consumer_group(modern.groups[0], node_id)
        if code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            raise KafkaError(code, modern.groups[0].error_message or f"group {group}")
    response: DescribeGroupsResponse = await connection.request(DescribeGroupsRequest(groups=[group]))
    found = response.groups[0]
    if found.error_code:
        raise KafkaError(ErrorCode(found.error_code), found.error_message or f"group {group}")
    if found.group_state == "Dead":
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group}")
    return _classic_group(found, node_id)


def _consumer_group(found: ConsumerGroupDescribeResponse.DescribedGroup, node_id: int) -> GroupInfo:
    members = [
        Member(
            one.member_id,
            one.instance_id,
            one.client_id,
            one.client_host,
            _partitions(one.assignment),
            _partitions(one.target_assignment),
            one.member_epoch,
        )
        for one in found.members
    ]
    return GroupInfo(
        found.group_id,
        "consumer",
        found.group_state,
        found.assignor_name,
        members,
        node_id,
        found.group_epoch,
        found.assignment_epoch,
    )


def _partitions(assignment: ConsumerGroupDescribeResponse.Assignment) -> list[TopicPartition]:
    return sorted(
        TopicPartition(topic.topic_name, partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )


def _classic_group(found: DescribeGroupsResponse.DescribedGroup, node_id: int) -> GroupInfo:
    is_consumer = found.protocol_type in ("consumer", "")
    members = [
        Member(
            one.member_id,
            one.group_instance_id,
            one.client_id,
            one.client_host,
            _embedded_assignment(bytes(one.member_assignment)) if is_consumer else [],
        )
        for one in found.members
    ]
    return GroupInfo(found.group_id, "classic", found.group_state, found.protocol_data, members, node_id)


def _embedded_assignment(data: bytes) -> list[TopicPartition]:
    """Decode the assignment of a classic group's member; malformed data, which no broker checks, yields nothing."""
    if len(data) < 2:
        return []
    version = min(int.from_bytes(data[:2], "big"), ASSIGNMENT_VERSION_MAX)
    try:
        decoded = codec(ConsumerProtocolAssignment, version).decode(data, 2)
    except DecodeError:
        return []
    return sorted(
        TopicPartition(one.topic, partition) for one in decoded.assigned_partitions for partition in one.partitions
    )


async def committed_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, Committed]:
    """Return all offsets that a group has committed."""
    _, connection = await find_coordinator(cluster, group)
    version = connection.version_for(OffsetFetchRequest, BY_NAME_VERSION_MAX)
    if version >= MANY_GROUPS_VERSION_MIN:
        requested = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
        request = OffsetFetchRequest(groups=[requested], require_stable=True)
    else:
        request = OffsetFetchRequest(group_id=group, topics=None)
    response: OffsetFetchResponse = await connection.request(request, version=version)
    found: Any = response.groups[0] if version >= MANY_GROUPS_VERSION_MIN else response
    if found.error_code:
        raise KafkaError(ErrorCode(found.error_code), f"the offsets of group {group}")
    offsets = {}
    for topic in found.topics:
        for one in topic.partitions:
            if one.error_code:
                raise KafkaError(ErrorCode(one.error_code), f"{topic.name}-{one.partition_index} of group {group}")
            if one.committed_offset >= 0:
                partition = TopicPartition(topic.name, one.partition_index)
                offsets[partition] = Committed(one.committed_offset, one.committed_leader_epoch, one.metadata or "")
    return offsets


async def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, ErrorCode]:
    """Commit offsets without being a member and return the error codes; a group with members refuses."""
    _, connection = await find_coordinator(cluster, group)
    version = connection.version_for(OffsetCommitRequest, BY_NAME_VERSION_MAX)
    topics: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = defaultdict(list)
    for (topic, partition), offset in offsets.items():
        topics[topic].append(
            OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        )
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=some) for name, some in topics.items()
        ],
    )
    response: OffsetCommitResponse = await connection.request(request, version=version)
    return _codes(response.topics)


async def delete_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    _, connection = await find_coordinator(cluster, group)
    topics: dict[str, list[OffsetDeleteRequest.OffsetDeleteRequestPartition]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=partition))
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(name=name, partitions=some) for name, some in topics.items()
        ],
    )
    response: OffsetDeleteResponse = await connection.request(request)
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code), f"group {group}")
    return _codes(response.topics)


def _codes(topics: Iterable[Any]) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, one.partition_index): ErrorCode(one.error_code)
        for topic in topics
        for one in topic.partitions
    }


async def delete_group(cluster: Cluster, group: str) -> ErrorCode:
    _, connection = await find_coordinator(cluster, group)
    response: DeleteGroupsResponse = await connection.request(DeleteGroupsRequest(groups_names=[group]))
    return ErrorCode(response.results[0].error_code)
