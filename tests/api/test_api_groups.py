"""Groups and offsets over the wire: a group's life cycle in every version, and how metadata changes affect offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.errors import ErrorCode
from headrace.client.wire.connection import Connection
from headrace.protocol.apis import APIS, ApiKey
from headrace.protocol.declare import Struct
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

TOPIC = "orders"
SETTINGS = {"offsets.topic.num.partitions": "3", "group.initial.rebalance.delay.ms": "0"}
ATTEMPTS_MAX = 500


def of(key: int, /, **fields: Any) -> Any:
    return APIS[key].request(**fields)


def part(key: int, kind: str, /, **fields: Any) -> Any:
    return getattr(APIS[key].request, kind)(**fields)


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(SETTINGS) as started:
        yield started


class Client:
    """Sends each request in its highest version that does not exceed the given one."""

    def __init__(self, connection: Connection, version: int) -> None:
        self.connection, self.version = connection, version

    async def send_request(self, request: Struct) -> Any:
        low, high = APIS[request.facts.api_key].request.facts.versions.low, request.facts.versions.high
        self.used = min(max(self.version, low), high)
        return await self.connection.request(request, version=self.used)

    def at_least(self, key: int, version: int) -> bool:
        versions = APIS[key].request.facts.versions
        return min(max(self.version, versions.low), versions.high) >= version


async def connect(node: EmbeddedNode, *groups: str) -> Connection:
    """Connect and wait until the coordinators of `groups` are available."""
    connection = await Connection.connect(LOOPBACK, node.port)
    for group in groups:
        for _ in range(ATTEMPTS_MAX):
            found = await connection.request(of(10, coordinator_keys=[group]), version=6)
            beat = await connection.request(of(12, group_id=group, member_id="nobody"), version=4)
            if not found.coordinators[0].error_code and beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                break
    return connection


async def make_topic(connection: Connection, name: str) -> bytes:
    topic = part(19, "CreatableTopic", name=name, num_partitions=2, replication_factor=1)
    answer = await connection.request(of(19, timeout_ms=9000, topics=[topic]), version=7)
    return answer.topics[0].topic_id


def commit_request(
    client: Client, group: str, topic: str, topic_id: bytes, offset: int, generation: int = -1, member: str = ""
) -> OffsetCommitRequest:
    named = {"topic_id": topic_id} if client.at_least(8, 10) else {"name": topic}
    partition = part(8, "OffsetCommitRequestPartition", partition_index=1, committed_offset=offset)
    topics = [part(8, "OffsetCommitRequestTopic", **named, partitions=[partition])]
    return of(8, group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=topics)


async def fetch_offset(client: Client, group: str, topic: str, topic_id: bytes) -> int:
    if client.at_least(9, 8):
        named = {"topic_id": topic_id} if client.at_least(9, 10) else {"name": topic}
        topics = [part(9, "OffsetFetchRequestTopics", **named, partition_indexes=[1])]
        answer = await client.send_request(
            of(9, groups=[part(9, "OffsetFetchRequestGroup", group_id=group, topics=topics)])
        )
        return answer.groups[0].topics[0].partitions[0].committed_offset
    topics = [part(9, "OffsetFetchRequestTopic", name=topic, partition_indexes=[1])]
    answer = await client.send_request(of(9, group_id=group, topics=topics))
    return answer.topics[0].partitions[0].committed_offset


@pytest.mark.parametrize("version", range(11))
def test_the_group_lifecycle_works_in_every_request_version(node: EmbeddedNode, version: int) -> None:
    async def run() -> None:
        group, topic = f"life-{version}", f"{TOPIC}-{version}"
        connection = await connect(node, group)
        topic_id = await make_topic(connection, topic)
        client = Client(connection, version)
        offered = [part(11, "JoinGroupRequestProtocol", name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")]
        timeouts = {"session_timeout_ms": 6000, "rebalance_timeout_ms": 9000}
        join = of(11, group_id=group, **timeouts, protocol_type="consumer", protocols=offered)
        joined = await client.send_request(join)
        if client.used >= 4:
            assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
            join.member_id = joined.member_id
            joined = await client.send_request(join)
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
        assert joined.leader == joined.member_id and [one.member_id for one in joined.members] == [joined.member_id]
        who = {"group_id": group, "generation_id": 1, "member_id": joined.member_id}
        piece = part(14, "SyncGroupRequestAssignment", member_id=joined.member_id, assignment=b"mine")
        named = {"protocol_type": "consumer", "protocol_name": "range"} if client.at_least(14, 5) else {}
        synced = await client.send_request(of(14, **who, **named, assignments=[piece]))
        assert (synced.error_code, synced.assignment) == (0, b"mine")
        assert (await client.send_request(of(12, **who))).error_code == 0
        commit = commit_request(client, group, topic, topic_id, 7, 1, joined.member_id)
        assert (await client.send_request(commit)).topics[0].partitions[0].error_code == 0
        assert await fetch_offset(client, group, topic, topic_id) == 7
        listed = await client.send_request(of(16))
        assert group in [one.group_id for one in listed.groups]
        [described] = (await client.send_request(of(15, groups=[group]))).groups
        assert (described.group_state, len(described.members)) == ("Stable", 1)
        [refused] = (await client.send_request(of(42, groups_names=[group]))).results
        assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
        if client.at_least(13, 3):
            members = [part(13, "MemberIdentity", member_id=joined.member_id)]
            left = await client.send_request(of(13, group_id=group, members=members))
            assert [one.error_code for one in left.members] == [0]
        else:
            left = await client.send_request(of(13, group_id=group, member_id=joined.member_id))
        assert left.error_code == 0
        partitions = [part(47, "OffsetDeleteRequestPartition", partition_index=1)]
        topics = [part(47, "OffsetDeleteRequestTopic", name=topic, partitions=partitions)]
        assert (await client.send_request(of(47, group_id=group, topics=topics))).topics[0].partitions[
            0
        ].error_code == 0
        assert await fetch_offset(client, group, topic, topic_id) == -1
        [deleted] = (await client.send_request(of(42, groups_names=[group]))).results
        assert deleted.error_code == 0
        await connection.close()

    asyncio.run(run())


def test_group_errors_are_encoded_in_every_request_version(node: EmbeddedNode) -> None:
    async def run() -> None:
        connection = await connect(node, "nobody")
        for key, request in (
            (11, of(11, group_id="", session_timeout_ms=6000)),
            (11, of(11, group_id="nobody", session_timeout_ms=6000, member_id="who")),
            (12, of(12, group_id="nobody")),
            (13, of(13, group_id="")),
            (14, of(14, group_id="nobody")),
        ):
            for version in APIS[key].request.facts.versions:
                assert (await connection.request(request, version=version)).error_code, (ApiKey(key).name, version)
        await connection.close()

    asyncio.run(run())


def test_deleting_a_topic_removes_its_committed_offsets(node: EmbeddedNode) -> None:
    async def run() -> None:
        connection = await connect(node, "reader", "other")
        client = Client(connection, 9)
        topic_id = await make_topic(connection, "doomed")
        for group in ("reader", "other"):
            await client.send_request(commit_request(client, group, "doomed", topic_id, 3))
            assert await fetch_offset(client, group, "doomed", topic_id) == 3
        await connection.request(
            of(20, timeout_ms=9000, topics=[part(20, "DeleteTopicState", name="doomed")]), version=6
        )
        for group in ("reader", "other"):
            for _ in range(ATTEMPTS_MAX):
                if await fetch_offset(client, group, "doomed", topic_id) == -1:
                    break
            assert await fetch_offset(client, group, "doomed", topic_id) == -1
        commit = commit_request(client, "reader", "doomed", topic_id, 4)
        refused = (await client.send_request(commit)).topics[0].partitions[0].error_code
        assert refused == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await connection.close()

    asyncio.run(run())


def test_a_refused_join_echoes_the_member_id_where_kafka_does(node: EmbeddedNode) -> None:
    async def run() -> None:
        connection = await connect(node, "empty", "new")
        offered = [part(11, "JoinGroupRequestProtocol", name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")]
        fields = {"rebalance_timeout_ms": 9000, "protocol_type": "consumer", "protocols": offered, "member_id": "who"}

        async def refused(group: str, session_timeout_ms: int = 6000, **more: Any) -> tuple[ErrorCode, str]:
            request = of(11, group_id=group, session_timeout_ms=session_timeout_ms, **{**fields, **more})
            answer = await connection.request(request, version=9)
            return ErrorCode(answer.error_code), answer.member_id

        assert await refused("empty") == (ErrorCode.UNKNOWN_MEMBER_ID, "who")
        assert await refused("empty", 1) == (ErrorCode.INVALID_SESSION_TIMEOUT, "who")
        assert await refused("") == (ErrorCode.INVALID_GROUP_ID, "who")
        beat = of(68, group_id="new", member_id="m", rebalance_timeout_ms=9000, subscribed_topic_names=[TOPIC])
        beat.topic_partitions = []
        assert (await connection.request(beat, version=1)).error_code == 0
        assert await refused("new", protocol_type="connect") == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
        await connection.close()

    asyncio.run(run())


def test_offset_delete_of_an_unknown_group_returns_group_id_not_found(node: EmbeddedNode) -> None:
    async def run() -> None:
        connection = await connect(node, "nobody")
        partitions = [part(47, "OffsetDeleteRequestPartition", partition_index=0)]
        topics = [part(47, "OffsetDeleteRequestTopic", name="no-such-topic", partitions=partitions)]
        answer = await connection.request(of(47, group_id="nobody", topics=topics), version=0)
        assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        await connection.close()

    asyncio.run(run())


def test_consumer_group_requests_are_unsupported_when_the_protocol_is_disabled() -> None:
    async def run(node: EmbeddedNode) -> None:
        connection = await connect(node, "g")
        beat = of(68, group_id="g", member_id="m", rebalance_timeout_ms=9000, subscribed_topic_names=[TOPIC])
        beat.topic_partitions = []
        assert (await connection.request(beat, version=1)).error_code == ErrorCode.UNSUPPORTED_VERSION
        [described] = (await connection.request(of(69, group_ids=["g"]), version=1)).groups
        assert described.error_code == ErrorCode.UNSUPPORTED_VERSION
        await connection.close()

    with EmbeddedNode({**SETTINGS, "group.coordinator.rebalance.protocols": "classic"}) as node:
        asyncio.run(run(node))


def test_responses_list_groups_and_topics_in_kafkas_order(node: EmbeddedNode) -> None:
    async def run() -> None:
        groups = ["zebra", "ant", "mole"]
        connection = await connect(node, *groups)
        client = Client(connection, 9)
        topic_id = await make_topic(connection, "ordered")
        for group in groups:
            await client.send_request(commit_request(client, group, "ordered", topic_id, 3))
        listed = [one.group_id for one in (await connection.request(of(16), version=5)).groups]
        assert listed == sorted(listed) and set(groups) <= set(listed)
        described = await connection.request(of(15, groups=["nobody", *groups]), version=6)
        assert [one.group_id for one in described.groups] == ["nobody", *groups]
        described = await connection.request(of(69, group_ids=["zebra", "", "ant"]), version=1)
        assert [(one.group_id, one.error_code) for one in described.groups] == [
            ("", ErrorCode.INVALID_GROUP_ID),
            ("zebra", ErrorCode.GROUP_ID_NOT_FOUND),
            ("ant", ErrorCode.GROUP_ID_NOT_FOUND),
        ]
        names = [part(3, "MetadataRequestTopic", name=name) for name in ("no-such", "ordered", "neither")]
        answer = await connection.request(of(3, topics=names, allow_auto_topic_creation=False), version=12)
        assert [topic.name for topic in answer.topics] == ["ordered", "no-such", "neither"]
        await connection.close()

    asyncio.run(run())
