"""Members of groups of both protocols that join, leave, switch protocols and are refused."""

from __future__ import annotations

import struct
from typing import Any

from headrace.protocol.compiler import codec
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.embedded import ConsumerProtocolSubscription
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest
from tools.prove.differential.scripts import GROUP_KEY, Script, ScriptRun, Step, Steps, code, find, is_available

TOPIC, PARTITIONS = "plain", 4
SESSION_MS, REBALANCE_MS = 30_000, 60_000
SUBSCRIPTION_VERSION = 3
ASSIGNOR = "cooperative-sticky"
Identity = LeaveGroupRequest.MemberIdentity


def subscription(*topics: str) -> bytes:
    message = ConsumerProtocolSubscription(topics=list(topics))
    version = SUBSCRIPTION_VERSION
    return struct.pack(">h", version) + codec(ConsumerProtocolSubscription, version).encode(message)


def join(group: str, member: str = "", version: int = 9, name: str = "", **more: Any) -> Step:
    offered = more.pop("offered", (ASSIGNOR,))
    fields = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS, "protocol_type": "consumer"}
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol(one, subscription(TOPIC)) for one in offered]
    message = JoinGroupRequest(group_id=group, member_id=member, protocols=protocols, **{**fields, **more})
    return Step(f"{name or 'join'} v{version}", message, version, is_available(code))


def sync(group: str, member: str, generation: int, *assigned: str, **more: Any) -> Step:
    pieces = [SyncGroupRequest.SyncGroupRequestAssignment(one, b"") for one in assigned]
    fields = {"protocol_type": "consumer", "protocol_name": ASSIGNOR}
    message = SyncGroupRequest(
        group_id=group, member_id=member, generation_id=generation, assignments=pieces, **{**fields, **more}
    )
    return Step("sync", message, 5, is_available(code))


def beat(group: str, member: str, generation: int, instance: str | None = None) -> Step:
    message = HeartbeatRequest(group_id=group, member_id=member, generation_id=generation, group_instance_id=instance)
    return Step("heartbeat", message, 4, is_available(code))


def leave(group: str, *members: Identity, version: int = 5) -> Step:
    return Step("leave", LeaveGroupRequest(group_id=group, members=list(members)), version, is_available(code))


def consume(group: str, member: str, epoch: int = 0, instance: str | None = None, **more: Any) -> Step:
    """Return a ConsumerGroupHeartbeat with all fields that joining needs."""
    message = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, instance_id=instance)
    if epoch == 0:
        message.rebalance_timeout_ms, message.subscribed_topic_names = REBALANCE_MS, [TOPIC]
        message.topic_partitions = []
    for name, value in more.items():
        setattr(message, name, value)
    return Step(f"consume at {epoch}", message, 1, is_available(code))


def describe(*groups: str, version: int = 6) -> Step:
    return Step(f"describe v{version}", DescribeGroupsRequest(groups=list(groups)), version)


def describe_consumers(*groups: str, version: int = 1) -> Step:
    return Step(f"describe consumer groups v{version}", ConsumerGroupDescribeRequest(group_ids=list(groups)), version)


def commit(group: str, offset: int, member: str = "", generation: int = -1) -> Step:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
    message = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=topics
    )
    return Step("commit", message, 9, is_available(lambda response: int(response.topics[0].partitions[0].error_code)))


def delete_offsets(group: str, *topics: str, partitions: tuple[int, ...] = (0,)) -> Step:
    wanted = [
        OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name, [OffsetDeleteRequest.OffsetDeleteRequestPartition(index) for index in partitions]
        )
        for name in topics
    ]
    return Step("delete offsets", OffsetDeleteRequest(group_id=group, topics=wanted), 0, is_available(code))


def delete_groups(*groups: str) -> Step:
    return Step("delete groups", DeleteGroupsRequest(groups_names=list(groups)), 2)


def listed(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> Step:
    return Step("list groups", ListGroupsRequest(states_filter=list(states), types_filter=list(types)), 5)


# --- scripts


def refused_joins(run: ScriptRun) -> Steps:
    yield find(["refused"], GROUP_KEY)
    for version in range(10):
        yield join("refused", "unknown", version, "unknown member")
        yield join("refused", "unknown", version, "session", session_timeout_ms=1)
        yield join("", "unknown", version, "no group")
        yield join("refused", "", version, "no protocol", offered=())
        yield join("refused", "", version, "no type", protocol_type="")
    member = run.name_id((yield join("refused")).member_id, "first")
    joined = yield join("refused", member)
    yield join("refused", "", 9, "other protocol", offered=("range",))
    yield join("refused", member, 9, "its other protocol", protocol_type="connect")
    yield join("refused", "unknown", 9, "unknown among known")
    yield beat("refused", member, joined.generation_id)
    yield beat("refused", member, 77)
    yield beat("refused", "unknown", joined.generation_id)
    yield sync("refused", member, 77)
    yield sync("refused", "unknown", joined.generation_id)
    yield sync("refused", member, joined.generation_id, protocol_name="range")
    yield sync("refused", member, joined.generation_id, member)
    yield beat("refused", member, joined.generation_id)
    for version in range(7):
        yield describe("refused", "absent", version=version)
    yield leave("refused", Identity("unknown"), Identity("", "instance"), Identity(member), Identity(member))
    yield describe("refused")
    yield delete_groups("refused", "absent", "")


def offsets_of_groups(run: ScriptRun) -> Steps:
    yield find(["offsets", "simple"], GROUP_KEY)
    for topics in ((TOPIC,), ("unknown",), (), (TOPIC, "unknown")):
        yield delete_offsets("absent", *topics)
    yield delete_offsets("", TOPIC)
    yield commit("simple", 3)
    yield commit("simple", 3, "unknown", 5)
    yield commit("absent", 3, "unknown", 5)
    yield delete_offsets("simple", "unknown", TOPIC, partitions=(1, 99))
    member = run.name_id((yield join("offsets")).member_id, "member")
    generation = (yield join("offsets", member)).generation_id
    yield sync("offsets", member, generation, member)
    yield commit("offsets", 7, member, generation)
    yield delete_offsets("offsets", TOPIC, "small")
    yield leave("offsets", Identity(member))
    yield delete_offsets("offsets", TOPIC, "small")


def consumer_groups(run: ScriptRun) -> Steps:
    yield find(["new"], GROUP_KEY)
    for epoch in (0, 1, -1, -2, -3):
        yield consume("new", "", epoch)
        yield consume("", "a", epoch)
    yield consume("new", "a", 1)
    yield consume("new", "a", -1)
    yield consume("new", "a", server_assignor="nope")
    first = yield consume("new", "a")
    yield consume("new", "a", first.member_epoch)
    yield consume("new", "a", 99)
    yield describe_consumers("new", "absent", "")
    yield describe("new", "absent")
    yield consume("new", "b", 0, "instance")
    yield consume("new", "c", 0, "instance")
    yield listed(types=("consumer",))
    yield leave("new", Identity("unknown"), Identity("a", "instance"), Identity("b"), Identity("a"))
    yield describe_consumers("new", version=0)
    yield delete_groups("new")


def pending_revocations(run: ScriptRun) -> Steps:
    yield find(["revoking"], GROUP_KEY)
    yield consume("revoking", "a")
    topic = run.target.topic_id(TOPIC)
    all_partitions = [ConsumerGroupHeartbeatRequest.TopicPartitions(topic, list(range(PARTITIONS)))]
    epoch = (yield consume("revoking", "a")).member_epoch
    yield consume("revoking", "a", epoch, topic_partitions=all_partitions)
    yield consume("revoking", "b")
    yield Step(
        "until the member has to revoke",
        consume("revoking", "a", epoch, topic_partitions=all_partitions).message,
        1,
        lambda response: response.assignment is not None or response.error_code != 0,
    )
    yield describe_consumers("revoking")


def classic_members_of_consumer_groups(run: ScriptRun) -> Steps:
    """Make the group classic: a static member comes back with the classic protocol."""
    yield find(["mixed"], GROUP_KEY)
    new = yield consume("mixed", "new", 0, "instance")
    yield join("mixed", "", 9, "other type", protocol_type="connect")
    member = run.name_id((yield join("mixed")).member_id, "classic")
    joined = yield join("mixed", member)
    yield sync("mixed", member, joined.generation_id)
    yield beat("mixed", "new", new.member_epoch)
    yield beat("mixed", member, 99)
    yield sync("mixed", member, 99)
    yield sync("mixed", member, joined.generation_id, protocol_name="other")
    yield join("mixed", "unknown", 9, "another type again", protocol_type="connect")
    back = yield join("mixed", "", group_instance_id="instance")
    run.name_id(back.member_id, "back")
    yield describe("mixed")
    yield describe_consumers("mixed")


def disabled_migration(run: ScriptRun) -> Steps:
    yield find(["new-disabled", "old-disabled"], GROUP_KEY)
    yield consume("new-disabled", "a")
    yield join("new-disabled")
    yield join("new-disabled", "unknown")
    member = run.name_id((yield join("old-disabled")).member_id, "member")
    generation = (yield join("old-disabled", member)).generation_id
    yield sync("old-disabled", member, generation, member)
    yield consume("old-disabled", "a")


def classic_only(run: ScriptRun) -> Steps:
    yield find(["switched-off"], GROUP_KEY)
    yield consume("switched-off", "a")
    yield describe_consumers("switched-off")


def orders(run: ScriptRun) -> Steps:
    """Check that responses follow the order of their requests."""
    groups = [f"order-{number}" for number in (7, 2, 9, 4)]
    yield find(groups, GROUP_KEY)
    for group in groups:
        yield commit(group, 1)
    yield describe("missing", *groups, groups[1])
    yield describe_consumers(*reversed(groups))
    yield listed(("Empty",), ("classic",))
    yield delete_groups(*groups[:2], "missing", *groups[2:])
    names = ["window", "append-time", "small", "compact"]  # with more topics, Kafka's order is that of a hash table
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    yield Step("metadata", MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("small", "unknown", "window")]
    yield Step("metadata with an unknown topic", MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)


GROUP_SCRIPTS: tuple[Script, ...] = (
    refused_joins,
    offsets_of_groups,
    consumer_groups,
    pending_revocations,
    classic_members_of_consumer_groups,
    orders,
)
DISABLED_SCRIPTS: tuple[Script, ...] = (disabled_migration,)
CLASSIC_SCRIPTS: tuple[Script, ...] = (classic_only,)
