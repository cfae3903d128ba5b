"""Simulated members of classic groups: they join, sync and send heartbeats, and rebalance eagerly."""

from __future__ import annotations

from random import Random

from headrace.base.errors import ErrorCode
from headrace.protocol.compiler import codec
from headrace.protocol.messages.embedded import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from testkit.simulator.clients import BACKOFF_S, REQUEST_TIMEOUT_S, World
from testkit.simulator.groups.members import GroupMember
from testkit.simulator.groups.offsets import TRANSIENT, Group, Place

PROTOCOL_TYPE, PROTOCOL = "consumer", "range"
EMBEDDED_VERSION = 1
PREFIX = EMBEDDED_VERSION.to_bytes(2, "big")
REVOKING_S = 0.3
INITIAL_DELAY_S_MAX = 1.0
NO_GENERATION = -1

Assignment = SyncGroupRequest.SyncGroupRequestAssignment


def assign_ranges(subscriptions: dict[str, list[str]], topics: dict[str, int]) -> dict[str, list[Place]]:
    """Divide each topic evenly among the members that subscribe to it."""
    assigned: dict[str, list[Place]] = {member: [] for member in subscriptions}
    for topic, count in sorted(topics.items()):
        wanting = sorted(member for member, wanted in subscriptions.items() if topic in wanted)
        for position, member in enumerate(wanting):
            first, end = position * count // len(wanting), (position + 1) * count // len(wanting)
            assigned[member] += [(topic, index) for index in range(first, end)]
    return assigned


class ClassicMember(GroupMember):
    def __init__(self, name: str, world: World, random: Random, group: Group, instance_id: str | None) -> None:
        super().__init__(name, world, random, group, instance_id)
        self._version = random.choice((5, 7, 9))
        self.begin_again()

    def begin_again(self) -> None:
        self.member_id = ""
        self._join_next()

    def _join_next(self) -> None:
        self.generation = NO_GENERATION
        self._joined_topics: list[str] = []

    @property
    def is_settled(self) -> bool:
        return self.generation != NO_GENERATION and not self.is_late and self._joined_topics == self.topics

    async def beat(self) -> None:
        if self.generation != NO_GENERATION and (self.is_late or self._joined_topics != self.topics):
            self.give(list(self.owned))
            self._join_next()
        if self.generation == NO_GENERATION:
            await self._join()
        else:
            await self._heartbeat()

    async def _heartbeat(self) -> None:
        sent = self.world.loop.now
        request = HeartbeatRequest(
            group_id=self.group.name,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        response: HeartbeatResponse = await self.send_request(request)
        code = ErrorCode(response.error_code)
        if code is ErrorCode.NONE:
            if not self.is_late:
                self.prolong(sent)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            await self._work()
            await self.pause(REVOKING_S)
            self.give(list(self.owned))
            self._join_next()
        else:
            await self._take_refusal(code, "heartbeat")

    async def _take_refusal(self, code: ErrorCode, what: str) -> None:
        if code in TRANSIENT:
            await self.pause(BACKOFF_S)
        elif code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS):
            self.give(list(self.owned))
            self._join_next()
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.give(list(self.owned))
            self.begin_again()
        else:
            self.unexpected(what, code)
            await self.pause(BACKOFF_S)

    async def _join(self) -> None:
        sent, topics = self.world.loop.now, self.topics
        subscription = codec(ConsumerProtocolSubscription, EMBEDDED_VERSION).encode(
            ConsumerProtocolSubscription(topics=topics)
        )
        request = JoinGroupRequest(
            group_id=self.group.name,
            session_timeout_ms=self.group.session_ms,
            rebalance_timeout_ms=self.group.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(PROTOCOL, PREFIX + bytes(subscription))],
        )
        # A missing member delays all others by the whole rebalance timeout, twice if it joins but does not sync.
        patience_s = self.group.rebalance_ms / 1000 * 2 + INITIAL_DELAY_S_MAX + REQUEST_TIMEOUT_S
        response: JoinGroupResponse = await self.send_request(request, self._version, patience_s)
        code = ErrorCode(response.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif code is ErrorCode.NONE:
            self.member_id = response.member_id
            await self._sync(response, topics, sent, patience_s)
        else:
            await self._take_refusal(code, "join")

    async def _sync(self, joined: JoinGroupResponse, topics: list[str], sent: float, patience_s: float) -> None:
        assignments = []
        if joined.leader == self.member_id and not joined.skip_assignment:
            assignments = self._assign(joined)
        request = SyncGroupRequest(
            group_id=self.group.name,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=assignments,
        )
        response: SyncGroupResponse = await self.send_request(request, timeout_s=patience_s)
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE:
            await self._take_refusal(code, "sync")
            return
        self.prolong(sent)
        if self.is_late:
            return  # it took so long that the coordinator may have removed the member: join again
        self.generation, self._joined_topics = joined.generation_id, topics
        assigned = codec(ConsumerProtocolAssignment, EMBEDDED_VERSION).decode(bytes(response.assignment), len(PREFIX))
        places = [(one.topic, index) for one in assigned.assigned_partitions for index in one.partitions]
        self.take(places, None if self.group.is_mixed else self.generation)

    def _assign(self, joined: JoinGroupResponse) -> list[Assignment]:
        subscriptions = {
            member.member_id: codec(ConsumerProtocolSubscription, EMBEDDED_VERSION)
            .decode(bytes(member.metadata), len(PREFIX))
            .topics
            for member in joined.members
        }
        assigned = assign_ranges(subscriptions, self.group.topics)
        return [Assignment(member_id, _encoded(places)) for member_id, places in assigned.items()]

    async def leave(self) -> None:
        if not self.member_id:
            return
        identity = LeaveGroupRequest.MemberIdentity(self.member_id, self.instance_id)
        response: LeaveGroupResponse = await self.send_request(
            LeaveGroupRequest(group_id=self.group.name, members=[identity])
        )
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE and code not in TRANSIENT:
            self.unexpected("leave", code)


def _encoded(places: list[Place]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in places:
        topics.setdefault(topic, []).append(index)
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(name, indexes) for name, indexes in topics.items()
        ]
    )
    return PREFIX + bytes(codec(ConsumerProtocolAssignment, EMBEDDED_VERSION).encode(assignment))
