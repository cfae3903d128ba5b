"""Base class of clients of a group coordinator: find it, commit offsets that only grow, and fetch committed offsets."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from msgspec import Struct, field

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.client.wire.connection import Connection, Disconnected
from headrace.client.wire.coordinator_lookup import find_coordinator
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from testkit.simulator.clients import LOST, REQUEST_TIMEOUT_S, Client, World

UNEXPECTED, UNANSWERED = "unexpected", "unanswered"

BY_ID_VERSION_MIN = 10  # first version of OffsetCommit and OffsetFetch with topic ids
MANY_GROUPS_VERSION_MIN = 8  # first version of OffsetFetch with several groups
MEMBER_VERSION_MIN = 9  # first version of OffsetFetch with a member id and epoch
# The coordinator has moved or is not ready; the request may have been written nonetheless.
TRANSIENT = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
# A commit of a member with a stale generation, or one that is too early.
REFUSALS = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
HANG_UP_SHARE = 0.03

Place = tuple[str, int]


class Group(Struct):
    """State shared by all members of one group."""

    name: str
    topics: dict[str, int]  # topics and their partition counts
    session_ms: int
    rebalance_ms: int
    is_mixed: bool = False  # has classic and consumer members: it restarts with generation 1 after it was empty
    next_offset: dict[Place, int] = field(default_factory=dict)  # no offset is committed twice
    quiet: bool = False  # members no longer die, leave, sleep or resubscribe
    committing: bool = True
    peace_from: float = float("inf")  # simulated time from which every request must get a response

    def take_offset(self, place: Place) -> int:
        self.next_offset[place] = offset = self.next_offset.get(place, 0) + 1
        return offset


class GroupClient(Client):
    def __init__(self, name: str, world: World, random: Random, group: Group, instance_id: str | None) -> None:
        super().__init__(name, world, random)
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1  # generation of a classic group, or member epoch
        self.lives = 1
        self.commit_version = self.fetch_version = BY_ID_VERSION_MIN
        self.fetches_stable = False
        self._topic_ids: dict[str, Uuid] = {}

    @property
    def process(self) -> str:
        return f"{self.name}#{self.lives}"

    async def learn_topics(self) -> None:
        for topic in self.group.topics:
            await self.cluster.partitions(topic)
            self._topic_ids[topic] = self.cluster.topic_id(topic)

    def topic_id(self, topic: str) -> Uuid:
        return self._topic_ids[topic]

    def topic_named(self, topic_id: bytes) -> str:
        return next(name for name, known in self._topic_ids.items() if known == topic_id)

    def unexpected(self, what: str, code: ErrorCode) -> None:
        self.history.note(UNEXPECTED, member=self.process, group=self.group.name, what=what, error=code.name)

    # --- requests

    async def send_request(self, request: Any, version: int | None = None, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Send a request to the coordinator; sometimes close the connection before the response arrives."""
        connection = await asyncio.wait_for(self._coordinator(), REQUEST_TIMEOUT_S)
        sent = self.world.loop.now
        if version is None:
            version = connection.version_for(type(request))
        future = connection.send(request, version)
        if not self.group.quiet and self.random.random() < HANG_UP_SHARE:
            await self.pause(0.02)
            await connection.close()
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            if sent >= self.group.peace_from:
                self.history.note(UNANSWERED, member=self.process, request=type(request).__name__)
            await connection.close()
            raise

    async def _coordinator(self) -> Connection:
        try:
            return (await find_coordinator(self.cluster, self.group.name))[1]
        except KafkaError as error:
            raise Disconnected(str(error)) from error

    # --- offsets

    async def commit(self, places: list[Place]) -> None:
        topics: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
        calls: dict[Place, int] = {}
        for place in places:
            topic, index = place
            offset = self.group.take_offset(place)
            partition = OffsetCommitRequest.OffsetCommitRequestPartition(index, offset)
            topics.setdefault(topic, []).append(partition)
            calls[place] = self.history.invoke(
                self.process, "commit", group=self.group.name, place=place, offset=offset, generation=self.generation
            )
        request = OffsetCommitRequest(
            group_id=self.group.name,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(name, self.topic_id(name), partitions)
                for name, partitions in topics.items()
            ],
        )
        try:
            response: OffsetCommitResponse = await self.send_request(request, self.commit_version)
        except LOST as error:
            for call in calls.values():
                self.history.info(call, error=type(error).__name__)
            return
        for answered in response.topics:
            name = answered.name or self.topic_named(answered.topic_id)
            for partition_response in answered.partitions:
                self._end_commit(calls.pop((name, partition_response.partition_index)), partition_response.error_code)
        for call in calls.values():
            self.history.info(call, error="NOT_TOLD")
            self.unexpected("a commit without a word", ErrorCode.NONE)

    def _end_commit(self, call: int, error_code: int) -> None:
        code = ErrorCode(error_code)
        if code is ErrorCode.NONE:
            self.history.ok(call)
        elif code in REFUSALS:
            self.history.fail(call, error=code.name)
        else:
            self.history.info(call, error=code.name)
            if code not in TRANSIENT:
                self.unexpected("commit", code)

    async def fetch(self) -> bool:
        """Record all committed offsets of the group in the history; return False if they could not be read."""
        version = self.fetch_version
        names = [(topic, list(range(count))) for topic, count in self.group.topics.items()]
        if version >= MANY_GROUPS_VERSION_MIN:
            is_known = version >= MEMBER_VERSION_MIN and self.generation > 0 and self.random.random() < 0.5
            wanted = OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=self.group.name,
                member_id=self.member_id if is_known else None,
                member_epoch=self.generation if is_known else -1,
                topics=[
                    OffsetFetchRequest.OffsetFetchRequestTopics(name, self.topic_id(name), indexes)
                    for name, indexes in names
                ],
            )
            request = OffsetFetchRequest(groups=[wanted], require_stable=self.fetches_stable)
        else:
            request = OffsetFetchRequest(
                group_id=self.group.name,
                topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name, indexes) for name, indexes in names],
                require_stable=self.fetches_stable,
            )
        call = self.history.invoke(self.process, "fetch", group=self.group.name)
        try:
            response: OffsetFetchResponse = await self.send_request(request, version)
        except LOST as error:
            self.history.info(call, error=type(error).__name__)
            return False
        found: Any = response.groups[0] if version >= MANY_GROUPS_VERSION_MIN else response
        code = ErrorCode(found.error_code)
        if code is not ErrorCode.NONE:
            self.history.fail(call, error=code.name)
            if code not in TRANSIENT | REFUSALS:
                self.unexpected("fetch", code)
            return False
        offsets = [
            (topic.name if version < BY_ID_VERSION_MIN else self.topic_named(topic.topic_id), one)
            for topic in found.topics
            for one in topic.partitions
        ]
        wrong = next((one.error_code for _, one in offsets if one.error_code), None)
        if wrong is not None:
            self.history.fail(call, error=ErrorCode(wrong).name)
            return False
        self.history.ok(call, offsets=[[name, one.partition_index, one.committed_offset] for name, one in offsets])
        return True
