"""A member of a classic group: JoinGroup, SyncGroup, Heartbeat; the group's leader assigns ranges."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

from bench.errors import BenchFailed
from bench.groups.frames import HEARTBEAT_VERSION, LOADING
from bench.groups.members import HEARTBEAT_S, REBALANCE_MS, SESSION_MS, AsyncConnection
from bench.systems.requests import RETRY_S
from headrace.base.errors import ErrorCode
from headrace.protocol.compiler import codec
from headrace.protocol.messages.embedded import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest

JOIN_VERSION = 9
SYNC_VERSION = 5
LEAVE_VERSION = 5
PROTOCOL, PROTOCOL_TYPE = "range", "consumer"
EMBEDDED_VERSION = 0
REJOIN_ERRORS = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)

_VERSION = struct.Struct(">h")


class ClassicMember:
    def __init__(
        self, connection: AsyncConnection, group: str, topic: str, partitions: int, session_ms: int = SESSION_MS
    ) -> None:
        self._connection = connection
        self._group = group
        self._topic = topic
        self._partitions = partitions
        self._session_ms = session_ms
        self.id = ""
        self.epoch = -1
        self.assigned: Sequence[int] = ()
        self.settled = False
        self.running = True

    async def run(self) -> None:
        while self.running:
            if self.settled:
                await asyncio.sleep(HEARTBEAT_S)
                await self.heartbeat()
            else:
                await self._join()

    async def _join(self) -> None:
        subscription = ConsumerProtocolSubscription(topics=[self._topic])
        metadata = _VERSION.pack(EMBEDDED_VERSION) + codec(type(subscription), EMBEDDED_VERSION).encode(subscription)
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(PROTOCOL, metadata)],
        )
        joined = await self._connection.request(request, JOIN_VERSION)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = joined.member_id
        elif joined.error_code == ErrorCode.NONE:
            self.id = joined.member_id
            await self._sync(joined)
        else:
            await self._handle_error(joined.error_code)

    async def _sync(self, joined: JoinGroupResponse) -> None:
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=self.id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=self._assign(joined) if joined.leader == self.id else [],
        )
        synced = await self._connection.request(request, SYNC_VERSION)
        if synced.error_code != ErrorCode.NONE:
            await self._handle_error(synced.error_code)
            return
        assigned = codec(ConsumerProtocolAssignment, EMBEDDED_VERSION).decode(synced.assignment, _VERSION.size)
        self.assigned = [index for topic in assigned.assigned_partitions for index in topic.partitions]
        self.epoch = joined.generation_id
        self.settled = True

    def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequest.SyncGroupRequestAssignment]:
        members = sorted(member.member_id for member in joined.members)
        least, more = divmod(self._partitions, len(members))
        assignments, start = [], 0
        for number, member in enumerate(members):
            end = start + least + (number < more)
            topic = ConsumerProtocolAssignment.TopicPartition(self._topic, list(range(start, end)))
            assignment = ConsumerProtocolAssignment([topic])
            encoded = _VERSION.pack(EMBEDDED_VERSION) + codec(type(assignment), EMBEDDED_VERSION).encode(assignment)
            assignments.append(SyncGroupRequest.SyncGroupRequestAssignment(member, encoded))
            start = end
        return assignments

    async def heartbeat(self) -> None:
        request = HeartbeatRequest(group_id=self._group, generation_id=self.epoch, member_id=self.id)
        response = await self._connection.request(request, HEARTBEAT_VERSION)
        if response.error_code != ErrorCode.NONE:
            await self._handle_error(response.error_code)

    async def _handle_error(self, code: int) -> None:
        """Prepare to rejoin the group after a retriable error. Raise BenchFailed for other errors."""
        self.settled = False
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.id = ""
        elif code in LOADING:
            await asyncio.sleep(RETRY_S)
        elif code not in REJOIN_ERRORS:
            raise BenchFailed(f"a request of a member of {self._group} failed with error {code}")

    async def leave(self) -> None:
        leaving = LeaveGroupRequest.MemberIdentity(member_id=self.id)
        await self._connection.request(LeaveGroupRequest(group_id=self._group, members=[leaving]), LEAVE_VERSION)

    def close(self) -> None:
        self._connection.close()
