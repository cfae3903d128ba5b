"""The requests of a classic group's member: join, sync, heartbeat, leave; and the assignment, if it leads.

OUT --join--> PARKED (the coordinator waits for the other members, and knows that we are alive) --> SYNCING --> IN.
Heartbeats are sent in the last two phases.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.group.assignors import Assignor
from headrace.client.group.classic_protocol import (
    PROTOCOL_TYPE,
    Subscribed,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.client.group.coordinator import JOINS, GroupCoordinator
from headrace.client.group.membership import NO_GENERATION, GroupMetadata
from headrace.client.group.settings import GroupSettings
from headrace.client.group.subscribed_topics import SubscribedTopics
from headrace.client.retry import UNREACHABLE, Retry, RetryPolicy
from headrace.client.wire.coordinator_lookup import COORDINATOR_MOVED, COORDINATOR_TRANSIENT
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

JOIN_SLACK_S = 5.0  # seconds beyond the longest time a rebalance may take
MANY_MEMBERS_VERSION_MIN = 3  # version of LeaveGroup
REASON_CHARS_MAX = 255
EVICTED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})

logger = logging.getLogger(__name__)


class Phase(Enum):
    OUT = "out"
    PARKED = "parked"
    SYNCING = "syncing"
    IN = "in"


class Evicted(HeadraceError):
    """The coordinator does not know us, or not in this generation: our partitions may be assigned to another member."""


class ClassicSession:
    def __init__(
        self,
        coordinator: GroupCoordinator,
        settings: GroupSettings,
        assignors: Sequence[Assignor],
        topics: SubscribedTopics,
    ) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._assignors = assignors
        self._topics = topics
        self.phase = Phase.OUT
        self.member_id = ""
        self.generation = NO_GENERATION
        self.last = GroupMetadata(settings.group_id, instance_id=settings.instance_id)

    @property
    def may_beat(self) -> bool:
        return self.phase in (Phase.SYNCING, Phase.IN)

    def reset(self, *, keep_member_id: bool = False) -> None:
        self.phase, self.generation = Phase.OUT, NO_GENERATION
        if not keep_member_id:
            self.member_id = ""

    # --- rebalancing

    async def join(
        self, owned: Collection[TopicPartition], held: Collection[TopicPartition], reason: str
    ) -> frozenset[TopicPartition]:
        """Join the group, retrying until that succeeds, and return the assignment.

        `owned` are the partitions still being read, `held` those assigned last, for sticky assignors. Raise Evicted if `owned`
        has to be given up, KafkaError for errors that a retry does not fix.
        """
        retry = Retry(RetryPolicy(self._settings.backoff, codes=COORDINATOR_TRANSIENT))
        while True:
            try:
                assigned = await self._join_once(owned, held, reason, retry)
            except UNREACHABLE as error:
                logger.info("group %s: not joined yet, retrying: %s", self._settings.group_id, error)
                await retry.pause(error)
            else:
                if assigned is not None:
                    return assigned

    async def _join_once(
        self, owned: Collection[TopicPartition], held: Collection[TopicPartition], reason: str, retry: Retry
    ) -> frozenset[TopicPartition] | None:
        """Try to join once; return None if that can be retried now."""
        try:
            topics = await self._topics.names()
            joined = await self._send_join(topics, owned, held, reason)
            code = ErrorCode(joined.error_code)
            if code is ErrorCode.NONE:
                self._enter(joined)
                synced = await self._send_sync(joined)
                code = ErrorCode(synced.error_code)
                if code is ErrorCode.NONE:
                    self.phase = Phase.IN
                    return _assigned(bytes(synced.assignment))
        finally:
            if self.phase is not Phase.IN:
                self.phase = Phase.OUT
        await self._handle_refusal(code, joined, retry)
        return None

    async def _handle_refusal(self, code: ErrorCode, joined: JoinGroupResponse, retry: Retry) -> None:
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return
        if code in EVICTED:
            self.reset(keep_member_id=code is ErrorCode.ILLEGAL_GENERATION)
            raise Evicted(code.name)
        error = KafkaError(code, f"joining group {self._settings.group_id}")
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            retry.reset()  # retry from the start, without a pause
            return
        if code in COORDINATOR_MOVED:
            self._coordinator.forget()
        await retry.pause(error)

    async def _send_join(
        self,
        topics: frozenset[str],
        owned: Collection[TopicPartition],
        held: Collection[TopicPartition],
        reason: str,
    ) -> JoinGroupResponse:
        protocols = []
        for assignor in self._assignors:
            subscribed = Subscribed(
                topics,
                tuple(owned),
                self.last.generation,
                self._settings.rack,
                user_data=assignor.user_data(held, self.last.generation) or b"",
            )
            protocols.append(JoinGroupRequest.JoinGroupRequestProtocol(assignor.name, encode_subscription(subscribed)))
        request = JoinGroupRequest(
            group_id=self._settings.group_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
            reason=reason[:REASON_CHARS_MAX],
        )
        self.phase = Phase.PARKED
        response: JoinGroupResponse = await self._coordinator.request(
            request, purpose=JOINS, timeout_s=self._patience_s
        )
        return response

    @property
    def _patience_s(self) -> float:
        return max(self._settings.request_timeout_s, self._settings.max_poll_interval_ms / 1000 + JOIN_SLACK_S)

    def _enter(self, joined: JoinGroupResponse) -> None:
        if joined.protocol_type not in (None, "", PROTOCOL_TYPE):
            what = f"group {self._settings.group_id} is one of {joined.protocol_type!r}"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what)
        self.member_id, self.generation = joined.member_id, joined.generation_id
        self.phase = Phase.SYNCING

    async def _send_sync(self, joined: JoinGroupResponse) -> SyncGroupResponse:
        assignments = []
        if joined.leader == joined.member_id:
            for member, partitions in (await self._assign(joined)).items():
                encoded = encode_assignment(partitions)
                assignments.append(SyncGroupRequest.SyncGroupRequestAssignment(member, encoded))
        else:
            self._topics.not_leading()
        request = SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        response: SyncGroupResponse = await self._coordinator.request(
            request, purpose=JOINS, timeout_s=self._patience_s
        )
        if response.error_code == ErrorCode.NONE:
            self.last = GroupMetadata(
                self._settings.group_id, joined.generation_id, self.member_id, self._settings.instance_id
            )
        return response

    async def _assign(self, joined: JoinGroupResponse) -> Mapping[str, list[TopicPartition]]:
        """Assign partitions to all members; return nothing if the coordinator says so (a static leader came back)."""
        group = self._settings.group_id
        assignor = next((one for one in self._assignors if one.name == joined.protocol_name), None)
        if assignor is None:
            what = f"group {group} has chosen {joined.protocol_name}, which we did not offer"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what)
        members: dict[str, Subscribed] = {}
        for member in joined.members:
            try:
                members[member.member_id] = decode_subscription(bytes(member.metadata), member.group_instance_id)
            except DecodeError as error:
                what = f"group {group}: the subscription of member {member.member_id} cannot be read: {error}"
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what) from error
        layout = await self._topics.layout_to_assign(
            frozenset().union(*(subscribed.topics for subscribed in members.values()))
        )
        return {} if joined.skip_assignment else assignor.assign(layout, members)

    # --- heartbeats and leaving

    async def beat(self) -> ErrorCode:
        """Send a heartbeat and return its error code. Raise one of UNREACHABLE if there is no response."""
        request = HeartbeatRequest(
            group_id=self._settings.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
        )
        response: HeartbeatResponse = await self._coordinator.request(request)
        code = ErrorCode(response.error_code)
        if code in COORDINATOR_MOVED:
            self._coordinator.forget()
        return code

    async def leave(self, reason: str, timeout_s: float) -> None:
        """Leave the group. Raise HeadraceError if the coordinator cannot be reached or refuses."""
        if not self.member_id:
            return
        identity = LeaveGroupRequest.MemberIdentity(
            self.member_id, self._settings.instance_id, reason[:REASON_CHARS_MAX]
        )

        def request(version: int) -> LeaveGroupRequest:
            if version < MANY_MEMBERS_VERSION_MIN:
                return LeaveGroupRequest(group_id=self._settings.group_id, member_id=identity.member_id)
            return LeaveGroupRequest(group_id=self._settings.group_id, members=[identity])

        self.reset()
        response: LeaveGroupResponse = await self._coordinator.request_by_version(
            LeaveGroupRequest, request, timeout_s=timeout_s
        )
        code = ErrorCode(response.error_code or next((member.error_code for member in response.members), 0))
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"leaving group {self._settings.group_id}")


def _assigned(data: bytes) -> frozenset[TopicPartition]:
    try:
        return decode_assignment(data)
    except DecodeError as error:
        what = f"the assignment by the group's leader cannot be read: {error}"
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what) from error
