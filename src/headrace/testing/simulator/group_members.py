"""What members of both kinds of groups share: claims to partitions, commits that only grow, reads of what was committed.

A member claims a partition from the moment it acts on an assignment until it gives it up, and no longer than `until`: the coordinator may
have given it up by then, which it cannot know. That moment is counted from when it sent the last request whose answer proves that nothing was
wrong, so it is never after the coordinator's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

from msgspec import Struct, field

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.client.connection import Connection, Disconnected
from headrace.client.groups import find_coordinator
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from headrace.testing.simulator.clients import BACKOFF_S, LOST, REQUEST_TIMEOUT_S, Client, World

TAKE, HOLD, GIVE = "take", "hold", "give"
UNEXPECTED, UNANSWERED = "unexpected", "unanswered"

CLOCK_S = 0.01  # that the coordinator's clock may be ahead: it counts milliseconds
PACE_S = 0.12
BY_ID_VERSION_MIN = 10  # of OffsetCommit and OffsetFetch
MANY_GROUPS_VERSION_MIN = 8  # of OffsetFetch
MEMBER_VERSION_MIN = 9  # of OffsetFetch
# The coordinator is elsewhere, or not ready; what was asked may have been written nonetheless.
PASSING = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
# A commit that comes from a member of another time, or too early.
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
# What a member does besides its duty, and how often.
HANG_UP_SHARE, COMMIT_SHARE, FETCH_SHARE = 0.03, 0.5, 0.25
DEATH_SHARE, LEAVING_SHARE, SLEEP_SHARE, RESUBSCRIBE_SHARE = 0.012, 0.012, 0.012, 0.02

Place = tuple[str, int]


class Group(Struct):
    """What the members of one group agree on."""

    name: str
    topics: dict[str, int]  # and how many partitions they have
    session_ms: int
    rebalance_ms: int
    next_offset: dict[Place, int] = field(default_factory=dict)  # no offset is committed twice
    quiet: bool = False  # nobody comes, goes or changes any more
    committing: bool = True
    peace_from: float = float("inf")  # from here on every request has to be answered

    def take_offset(self, place: Place) -> int:
        self.next_offset[place] = offset = self.next_offset.get(place, 0) + 1
        return offset


class GroupMember(Client):
    """`run` is a life with many deaths; a kind of member says how it beats, and how it leaves."""

    commit_versions: tuple[int, ...] = (9, BY_ID_VERSION_MIN)

    def __init__(self, name: str, world: World, chance: Random, group: Group, instance_id: str | None) -> None:
        super().__init__(name, world, chance)
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1  # or the member's epoch
        self.lives = 1
        self.owned: dict[Place, None] = {}
        self.until = 0.0
        self.topics = self._subscription()
        self._topic_ids: dict[str, Uuid] = {}
        self._committing: asyncio.Task[None] | None = None
        self._commit_version = chance.choice(self.commit_versions)
        self._fetch_version = chance.choice((7, 8, 9, 10))
        self._fetches_stable = chance.random() < 0.5

    # --- as kinds of members have it

    async def beat(self) -> None:
        """One step: whatever the protocol asks for next. LOST and KafkaError as they come."""
        raise NotImplementedError

    async def leave(self) -> None:
        raise NotImplementedError

    def begin_again(self) -> None:
        """As a process that was just started: it knows nothing."""
        raise NotImplementedError

    # --- life

    @property
    def process(self) -> str:
        return f"{self.name}#{self.lives}"

    async def run(self) -> None:
        await self.until_it_works(self.learn_topics)
        await self.pause(PACE_S * 4)
        while not self.world.stopping:
            if not self.group.quiet:
                await self._live_on()
            try:
                await self.beat()
            except LOST:
                await self.pause(BACKOFF_S)
            except KafkaError as error:
                self.unexpected("beat", error.code)
                await self.pause(BACKOFF_S)
            await self._work()
            await self.pause(PACE_S)
        if self._committing is not None:
            await asyncio.wait([self._committing])
        await self.close()

    async def learn_topics(self) -> None:
        for topic in self.group.topics:
            await self.cluster.partitions(topic)
            self._topic_ids[topic] = self.cluster.topic_id(topic)

    def topic_id(self, topic: str) -> Uuid:
        return self._topic_ids[topic]

    def topic_named(self, topic_id: bytes) -> str:
        return next(name for name, known in self._topic_ids.items() if known == topic_id)

    def _subscription(self) -> list[str]:
        names = list(self.group.topics)
        return sorted(self.chance.sample(names, self.chance.randint(1, len(names))))

    async def _live_on(self) -> None:
        kind, session_s = self.chance.random(), self.group.session_ms / 1000
        if (kind := kind - DEATH_SHARE) < 0:
            await self._die()
            await self.pause(session_s * 2)
        elif (kind := kind - LEAVING_SHARE) < 0:
            self.give(list(self.owned))
            try:
                await self.leave()
            except LOST:
                pass
            except KafkaError as error:
                self.unexpected("leave", error.code)
            await self._die()
            await self.pause(session_s)
        elif (kind := kind - SLEEP_SHARE) < 0:
            await self.pause(session_s * 2)  # with all that it owns
        elif (kind := kind - RESUBSCRIBE_SHARE) < 0:
            self.topics = self._subscription()

    async def _die(self) -> None:
        self.give(list(self.owned))
        await self.cluster.close()
        self.lives += 1
        self.until = 0.0
        self.begin_again()

    # --- claims

    @property
    def is_late(self) -> bool:
        return self.world.loop.now >= self.until

    def prolong(self, sent: float) -> None:
        """An answer to what was sent then says that all is well."""
        allowed_s = min(self.group.session_ms, self.group.rebalance_ms) / 1000 - CLOCK_S
        self.until = max(self.until, sent + allowed_s)
        if self.owned:
            self.history.note(HOLD, member=self.process, group=self.group.name, until=self.until)

    def take(self, places: list[Place], generation: int | None = None) -> None:
        """`generation` of a member that shares it with all others."""
        new = [place for place in places if place not in self.owned]
        if not new and generation is None:
            return
        self.owned.update(dict.fromkeys(new))
        self.history.note(
            TAKE,
            member=self.process,
            identity=self.instance_id or self.member_id,
            group=self.group.name,
            places=new,
            until=self.until,
            generation=generation,
        )

    def give(self, places: list[Place]) -> None:
        for place in places:
            del self.owned[place]
        if places:
            self.history.note(GIVE, member=self.process, group=self.group.name, places=places)

    def unexpected(self, what: str, code: ErrorCode) -> None:
        self.history.note(UNEXPECTED, member=self.process, group=self.group.name, what=what, error=code.name)

    # --- asking

    async def ask(self, request: Any, version: int | None = None, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Of the coordinator. Now and then the member hangs up before it is answered."""
        connection = await asyncio.wait_for(self._coordinator(), REQUEST_TIMEOUT_S)
        sent = self.world.loop.now
        if version is None:
            version = connection.version_for(type(request))
        future = connection.send(request, version)
        if not self.group.quiet and self.chance.random() < HANG_UP_SHARE:
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

    async def _work(self) -> None:
        """Real consumers commit while they beat; so do these, half of the time."""
        if self._committing is not None and not self._committing.done():
            return
        places = [place for place in self.owned if self.chance.random() < 0.7]
        if places and not self.is_late and self.group.committing and self.chance.random() < COMMIT_SHARE:
            work: Coroutine[Any, Any, object] = self._commit(places)
        elif self.chance.random() < FETCH_SHARE:
            work = self.fetch()
        else:
            return
        self._committing = self.world.loop.create_task(work)
        if self.chance.random() < 0.5:
            await asyncio.wait([self._committing])

    @property
    def is_working(self) -> bool:
        return self._committing is not None and not self._committing.done()

    async def _commit(self, places: list[Place]) -> None:
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
            answer: OffsetCommitResponse = await self.ask(request, self._commit_version)
        except LOST as error:
            for call in calls.values():
                self.history.info(call, error=type(error).__name__)
            return
        for answered in answer.topics:
            name = answered.name or self.topic_named(answered.topic_id)
            for partition_answer in answered.partitions:
                self._end_commit(calls.pop((name, partition_answer.partition_index)), partition_answer.error_code)
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
            if code not in PASSING:
                self.unexpected("commit", code)

    async def fetch(self) -> bool:
        """All that the group has committed; False if nobody told."""
        version = self._fetch_version
        names = [(topic, list(range(count))) for topic, count in self.group.topics.items()]
        if version >= MANY_GROUPS_VERSION_MIN:
            is_known = version >= MEMBER_VERSION_MIN and self.generation > 0 and self.chance.random() < 0.5
            wanted = OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=self.group.name,
                member_id=self.member_id if is_known else None,
                member_epoch=self.generation if is_known else -1,
                topics=[
                    OffsetFetchRequest.OffsetFetchRequestTopics(name, self.topic_id(name), indexes)
                    for name, indexes in names
                ],
            )
            request = OffsetFetchRequest(groups=[wanted], require_stable=self._fetches_stable)
        else:
            request = OffsetFetchRequest(
                group_id=self.group.name,
                topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name, indexes) for name, indexes in names],
                require_stable=self._fetches_stable,
            )
        call = self.history.invoke(self.process, "fetch", group=self.group.name)
        try:
            answer: OffsetFetchResponse = await self.ask(request, version)
        except LOST as error:
            self.history.info(call, error=type(error).__name__)
            return False
        found: Any = answer.groups[0] if version >= MANY_GROUPS_VERSION_MIN else answer
        code = ErrorCode(found.error_code)
        if code is not ErrorCode.NONE:
            self.history.fail(call, error=code.name)
            if code not in PASSING | REFUSALS:
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
