"""A classic group for tests: a shard, members by name, and a transcript of the responses they got."""

import struct

from group_stage import GroupStage

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.coordinators.group.classic.membership import heartbeat_at_a_glance
from headrace.coordinators.group.records import decode_group_record
from headrace.protocol.compiler import codec
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


class Stage(GroupStage):
    """A group shard that counts the responses to each request."""

    def __init__(self, **settings):
        super().__init__({TOPIC: 4}, **{"group_initial_rebalance_delay_ms": 0} | settings)
        self.answers = []

    def submit(self, request, tell, version=1, **asked):
        number = len(self.answers)
        self.answers.append(0)

        def told(answer, error):
            self.answers[number] += 1
            tell(answer, error)

        super().submit(request, told, version, **{"client_id": "cl", "client_host": "/h"} | asked)

    def hear(self, request, version, tell):
        """Submit a request and pass its response or error to `tell` whenever it arrives."""
        self.submit(request, lambda answer, error: tell(answer if error is None else error), version)

    def code(self, request, version):
        """Return the error code of a request that is refused, or of its response."""
        try:
            return ErrorCode(self.ask(request, version).error_code)
        except KafkaError as error:
            return error.code

    def glance(self, request):
        """Return the response to a heartbeat that needs no decision, or None if it needs one."""
        if not self.runtime.is_settled:
            return None
        return heartbeat_at_a_glance(self.shard, request, self.now_ms, lambda timer, at_ms: None)

    def stored(self):
        """Return the last record of every key that has a value, as after compaction."""
        last = {}
        for key, value in self.journal.written[: self.journal.committed]:
            last.pop(key, None)
            if value is not None:
                last[key] = value
        return [decode_group_record(key, value) for key, value in last.items()]


def subscription(*topics, owned=(), version=1):
    body = ConsumerProtocolSubscription(
        topics=list(topics),
        owned_partitions=[ConsumerProtocolSubscription.TopicPartition(TOPIC, list(owned))] if owned else [],
    )
    return struct.pack(">h", version) + codec(ConsumerProtocolSubscription, version).encode(body)


class Member:
    """A client that keeps its id and generation and adds every response to the transcript."""

    def __init__(self, cast, name, instance=None, protocols=("range",), topics=(TOPIC,)):
        self.cast, self.name, self.instance = cast, name, instance
        self.protocols, self.topics = protocols, topics
        self.id, self.generation, self.leads, self.roster = "", -1, False, []

    def join(self, version=9, **more):
        self.cast.stage.hear(self._join_request(**more), version, lambda answer: self._joined(answer, version, more))
        return self

    def _join_request(self, metadata=None, session=SESSION_MS, rebalance=REBALANCE_MS, kind="consumer"):
        offered = [
            JoinGroupRequest.JoinGroupRequestProtocol(name, metadata or subscription(*self.topics))
            for name in self.protocols
        ]
        return JoinGroupRequest(GROUP, session, rebalance, self.id, self.instance, kind, offered)

    def _joined(self, answer, version, more):
        if isinstance(answer, Exception):
            self.cast.say(self.name, "join", _name_of(answer))
            return
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            self.join(version, **more)
            return
        if answer.error_code:
            self.cast.say(self.name, "join", ErrorCode(answer.error_code).name)
            if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.id = ""
            return
        self.id, self.generation = answer.member_id, answer.generation_id
        self.leads = answer.leader == answer.member_id
        self.roster = [one.member_id for one in answer.members]
        said = f"generation {answer.generation_id} {answer.protocol_name}, leader {self.cast.who(answer.leader)}"
        if answer.members:
            said += ", of " + " ".join(self.cast.who(member) for member in self.roster)
        self.cast.say(self.name, "join", said + (", nothing to assign" if answer.skip_assignment else ""))

    def sync(self, version=5, **shares):
        """Sync; a leader assigns `shares` by name, by default pieces that name the generation."""
        pieces = {self.cast.by_name(name).id: piece for name, piece in shares.items()}
        if self.leads and not pieces:
            pieces = {member: f"{self.generation}:{self.cast.who(member)}" for member in self.roster}
        given = [
            SyncGroupRequest.SyncGroupRequestAssignment(member, piece.encode()) for member, piece in pieces.items()
        ]
        request = SyncGroupRequest(GROUP, self.generation, self.id, self.instance, "consumer", self.protocols[0], given)
        generation = self.generation
        self.cast.stage.hear(request, version, lambda answer: self._synced(answer, generation))
        return self

    def _synced(self, answer, generation):
        if isinstance(answer, Exception) or answer.error_code:
            self.cast.say(self.name, "sync", _name_of(answer))
        else:
            self.cast.say(self.name, "sync", answer.assignment.decode() or "nothing")
            self.cast.assigned.append((generation, self.name, answer.assignment))

    def beat(self):
        request, stage = HeartbeatRequest(GROUP, self.generation, self.id, self.instance), self.cast.stage
        glanced = stage.glance(request)
        code = stage.code(request, 4)
        assert glanced is None or (glanced == HeartbeatResponse() and code is ErrorCode.NONE)
        self.cast.say(self.name, "beat", code.name)
        return self

    def leave(self):
        identity = LeaveGroupRequest.MemberIdentity(self.id, self.instance)
        [left] = self.cast.stage.ask(LeaveGroupRequest(GROUP, members=[identity]), 5).members
        self.cast.say(self.name, "leave", ErrorCode(left.error_code).name)
        return self

    def commit(self, offset, version=9):
        request = commit_request(GROUP, {0: offset}, self.generation, self.id, self.instance)
        try:
            code = ErrorCode(self.cast.stage.ask(request, version).topics[0].partitions[0].error_code)
        except KafkaError as error:
            code = error.code
        self.cast.say(self.name, "commit", code.name)
        return self


def commit_request(
    group, offsets, generation=-1, member="", instance=None, topic=TOPIC, topic_id=TOPIC_ID, metadata="m"
):
    partitions = [
        OffsetCommitRequest.OffsetCommitRequestPartition(index, offset, 3, metadata)
        for index, offset in offsets.items()
    ]
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(topic, topic_id, partitions)]
    return OffsetCommitRequest(group, generation, member, instance, topics=topics)


def _name_of(answer):
    if isinstance(answer, NotLeader):
        return "NotLeader"
    return (answer.code if isinstance(answer, KafkaError) else ErrorCode(answer.error_code)).name


class Cast:
    """The members of one group and the transcript of their responses."""

    def __init__(self, **settings):
        self.stage = Stage(**settings)
        self.members = []
        self.story = []
        self.assigned = []

    def member(self, name, **more):
        self.members.append(Member(self, name, **more))
        return self.members[-1]

    def by_name(self, name):
        return next(member for member in self.members if member.name == name)

    def who(self, member_id):
        return next((member.name for member in self.members if member.id == member_id), "?")

    def say(self, *words):
        self.story.append(" ".join((words[0], words[1] + ":", *words[2:])))

    def heard(self):
        """Return the transcript since the last call."""
        told, self.story = self.story, []
        return told

    def stable(self, *names, **settings):
        """Return members of these names after they have joined and synced."""
        members = [self.member(name, **settings) for name in names]
        for member in members:
            member.join()
            self.stage.pass_time(0)
        for member in members[:-1]:
            if member.generation != members[-1].generation or member.generation < 0:
                member.join()
        for member in sorted(members, key=lambda member: member.leads):
            member.sync()
        self.heard()
        return members
