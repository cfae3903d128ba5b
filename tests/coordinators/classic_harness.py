"""A classic group for tests: a shard, members by name, and a transcript of the responses they got."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from tests.coordinators.group_harness import GroupHarness

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import Uuid
from headrace.coordinators.group.classic.membership import heartbeat_without_decision
from headrace.coordinators.group.records import GroupRecord, decode_group_record
from headrace.protocol.compiler import codec
from headrace.protocol.declare import Struct
from headrace.protocol.messages.embedded import ConsumerProtocolSubscription
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest
from headrace.statemachine.journal import NotLeader

GROUP = "readers"
TOPIC = "orders"
TOPIC_ID = Uuid(b"orders.." + bytes(8))  # the id that GroupStage gives the topic
SESSION_MS = 10_000
REBALANCE_MS = 60_000


class ClassicHarness(GroupHarness):
    """A group shard that counts the responses to each request."""

    def __init__(self, **settings: Any) -> None:
        super().__init__({TOPIC: 4}, **{"group_initial_rebalance_delay_ms": 0} | settings)
        self.response_counts: list[int] = []

    def submit(self, request: Struct, callback: Callable[..., Any], version: int = 1, **caller: Any) -> None:
        number = len(self.response_counts)
        self.response_counts.append(0)

        def recorded(response: Struct | None, error: HeadraceError | None) -> None:
            self.response_counts[number] += 1
            callback(response, error)

        super().submit(request, recorded, version, **{"client_id": "cl", "client_host": "/h"} | caller)

    def send(self, request: Struct, version: int, callback: Callable[..., Any]) -> None:
        """Submit a request and pass its response or error to `tell` whenever it arrives."""
        self.submit(request, lambda response, error: callback(response if error is None else error), version)

    def code(self, request: Struct, version: int) -> ErrorCode:
        """Return the error code of a request that is refused, or of its response."""
        try:
            return ErrorCode(self.execute(request, version).error_code)
        except KafkaError as error:
            return error.code

    def heartbeat_without_decision(self, request: HeartbeatRequest) -> HeartbeatResponse | None:
        """Return the response to a heartbeat that needs no decision, or None if it needs one."""
        if not self.runtime.is_settled:
            return None
        return heartbeat_without_decision(self.shard, request, self.now_ms, lambda timer, at_ms: None)

    def stored(self) -> list[GroupRecord]:
        """Return the last record of every key that has a value, as after compaction."""
        last: dict[bytes, bytes] = {}
        for key, value in self.journal.written[: self.journal.committed]:
            last.pop(key, None)
            if value is not None:
                last[key] = value
        return [decode_group_record(key, value) for key, value in last.items()]


def subscription(*topics: str, owned: tuple[int, ...] = (), version: int = 1) -> bytes:
    body = ConsumerProtocolSubscription(
        topics=list(topics),
        owned_partitions=[ConsumerProtocolSubscription.TopicPartition(TOPIC, list(owned))] if owned else [],
    )
    return struct.pack(">h", version) + codec(ConsumerProtocolSubscription, version).encode(body)


class Member:
    """A client that keeps its id and generation and adds every response to the transcript."""

    def __init__(
        self,
        scenario: Scenario,
        name: str,
        instance: str | None = None,
        protocols: tuple[str, ...] = ("range",),
        topics: tuple[str, ...] = (TOPIC,),
    ) -> None:
        self.scenario, self.name, self.instance = scenario, name, instance
        self.protocols, self.topics = protocols, topics
        self.id = ""
        self.generation = -1
        self.leads = False
        self.roster: list[str] = []

    def join(self, version: int = 9, **more: Any) -> Member:
        self.scenario.harness.send(
            self._join_request(**more), version, lambda response: self._joined(response, version, more)
        )
        return self

    def _join_request(
        self,
        metadata: bytes | None = None,
        session: int = SESSION_MS,
        rebalance: int = REBALANCE_MS,
        kind: str = "consumer",
    ) -> JoinGroupRequest:
        offered = [
            JoinGroupRequest.JoinGroupRequestProtocol(name, metadata or subscription(*self.topics))
            for name in self.protocols
        ]
        return JoinGroupRequest(GROUP, session, rebalance, self.id, self.instance, kind, offered)

    def _joined(self, response: Any, version: int, more: Mapping[str, Any]) -> None:
        if isinstance(response, Exception):
            self.scenario.record(self.name, "join", _name_of(response))
            return
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = response.member_id
            self.join(version, **more)
            return
        if response.error_code:
            self.scenario.record(self.name, "join", ErrorCode(response.error_code).name)
            if response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.id = ""
            return
        self.id, self.generation = response.member_id, response.generation_id
        self.leads = response.leader == response.member_id
        self.roster = [one.member_id for one in response.members]
        line = f"generation {response.generation_id} {response.protocol_name}, leader {self.scenario.name_by_id(response.leader)}"
        if response.members:
            line += ", of " + " ".join(self.scenario.name_by_id(member) for member in self.roster)
        self.scenario.record(self.name, "join", line + (", nothing to assign" if response.skip_assignment else ""))

    def sync(self, version: int = 5, **shares: Any) -> Member:
        """Sync; a leader assigns `shares` by name, by default pieces that name the generation."""
        pieces = {self.scenario.by_name(name).id: piece for name, piece in shares.items()}
        if self.leads and not pieces:
            pieces = {member: f"{self.generation}:{self.scenario.name_by_id(member)}" for member in self.roster}
        given = [
            SyncGroupRequest.SyncGroupRequestAssignment(member, piece.encode()) for member, piece in pieces.items()
        ]
        request = SyncGroupRequest(GROUP, self.generation, self.id, self.instance, "consumer", self.protocols[0], given)
        generation = self.generation
        self.scenario.harness.send(request, version, lambda response: self._synced(response, generation))
        return self

    def _synced(self, response: Any, generation: int) -> None:
        if isinstance(response, Exception) or response.error_code:
            self.scenario.record(self.name, "sync", _name_of(response))
        else:
            self.scenario.record(self.name, "sync", response.assignment.decode() or "nothing")
            self.scenario.assigned.append((generation, self.name, response.assignment))

    def beat(self) -> Member:
        request, harness = HeartbeatRequest(GROUP, self.generation, self.id, self.instance), self.scenario.harness
        early_response = harness.heartbeat_without_decision(request)
        code = harness.code(request, 4)
        assert early_response is None or (early_response == HeartbeatResponse() and code is ErrorCode.NONE)
        self.scenario.record(self.name, "beat", code.name)
        return self

    def leave(self) -> Member:
        identity = LeaveGroupRequest.MemberIdentity(self.id, self.instance)
        [left] = self.scenario.harness.execute(LeaveGroupRequest(GROUP, members=[identity]), 5).members
        self.scenario.record(self.name, "leave", ErrorCode(left.error_code).name)
        return self

    def commit(self, offset: int, version: int = 9) -> Member:
        request = commit_request(GROUP, {0: offset}, self.generation, self.id, self.instance)
        try:
            code = ErrorCode(self.scenario.harness.execute(request, version).topics[0].partitions[0].error_code)
        except KafkaError as error:
            code = error.code
        self.scenario.record(self.name, "commit", code.name)
        return self


def commit_request(
    group: str,
    offsets: Mapping[int, int],
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
    topic: str = TOPIC,
    topic_id: Uuid = TOPIC_ID,
    metadata: str | None = "m",
) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequest.OffsetCommitRequestPartition(index, offset, 3, metadata)
        for index, offset in offsets.items()
    ]
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(topic, topic_id, partitions)]
    return OffsetCommitRequest(group, generation, member, instance, topics=topics)


def _name_of(response: Any) -> str:
    if isinstance(response, NotLeader):
        return "NotLeader"
    return (response.code if isinstance(response, KafkaError) else ErrorCode(response.error_code)).name


class Scenario:
    """The members of one group and the transcript of their responses."""

    def __init__(self, **settings: Any) -> None:
        self.harness = ClassicHarness(**settings)
        self.members: list[Member] = []
        self.transcript: list[str] = []
        self.assigned: list[tuple[int, str, bytes]] = []

    def member(self, name: str, **more: Any) -> Member:
        self.members.append(Member(self, name, **more))
        return self.members[-1]

    def by_name(self, name: str) -> Member:
        return next(member for member in self.members if member.name == name)

    def name_by_id(self, member_id: str) -> str:
        return next((member.name for member in self.members if member.id == member_id), "?")

    def record(self, *words: str) -> None:
        self.transcript.append(" ".join((words[0], words[1] + ":", *words[2:])))

    def responses(self) -> list[str]:
        """Return the transcript since the last call."""
        recorded, self.transcript = self.transcript, []
        return recorded

    def stable(self, *names: str, **settings: Any) -> list[Member]:
        """Return members of these names after they have joined and synced."""
        members = [self.member(name, **settings) for name in names]
        for member in members:
            member.join()
            self.harness.pass_time(0)
        for member in members[:-1]:
            if member.generation != members[-1].generation or member.generation < 0:
                member.join()
        for member in sorted(members, key=lambda member: member.leads):
            member.sync()
        self.responses()
        return members
