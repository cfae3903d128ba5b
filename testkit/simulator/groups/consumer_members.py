"""Simulated members of consumer groups (KIP-848): they send heartbeats and confirm revocations after a delay."""

from __future__ import annotations

from random import Random

from headrace.base.errors import ErrorCode
from headrace.base.ids import new_uuid, uuid_text
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from testkit.simulator.clients import BACKOFF_S, LOST, World
from testkit.simulator.groups.members import GroupMember
from testkit.simulator.groups.offsets import TRANSIENT, Group, Place

JOINING, LEAVING, LEAVING_TO_RETURN = 0, -1, -2
REVOKING_S = 0.4
FULL_SHARE = 0.15
STUBBORN_SHARE = 0.05  # share of revocations that may exceed the rebalance timeout
BEGIN_AGAIN = frozenset(
    {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)


class ConsumerMember(GroupMember):
    def __init__(self, name: str, world: World, random: Random, group: Group, instance_id: str | None) -> None:
        super().__init__(name, world, random, group, instance_id)
        self._version = random.choice((0, 1, 1))
        self._assignor = random.choice((None, None, "range", "uniform"))
        self.begin_again()

    def begin_again(self) -> None:
        self.member_id = "" if self._version == 0 else uuid_text(new_uuid(self.random))
        self._join_next()

    def _join_next(self) -> None:
        self.generation = JOINING
        self._target: dict[Place, None] = {}
        self._sent_owned: list[Place] | None = None  # owned partitions in the last successful heartbeat
        self._sent_topics: list[str] | None = None
        self._is_sure = False  # the last heartbeat got a successful response
        self._revoke_at = 0.0

    @property
    def is_settled(self) -> bool:
        return (
            self.generation > 0 and not self.is_late and self.owned == self._target and self.topics == self._sent_topics
        )

    async def beat(self) -> None:
        if self.generation > 0 and self.is_late:
            self.give(list(self.owned))
            self._join_next()
        self._revoke()
        listed, sent = sorted(self.owned), self.world.loop.now
        joins = self.generation == JOINING
        full = joins or not self._is_sure or self.random.random() < FULL_SHARE
        topics = self.topics
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group.name,
            member_id=self.member_id,
            member_epoch=self.generation,
            instance_id=self.instance_id,
            rebalance_timeout_ms=self.group.rebalance_ms if full else -1,
            subscribed_topic_names=topics if full or topics != self._sent_topics else None,
            server_assignor=self._assignor if full else None,
            topic_partitions=self._listed(listed) if full or listed != self._sent_owned else None,
        )
        self._is_sure = False
        response: ConsumerGroupHeartbeatResponse = await self.send_request(request, self._version)
        code = ErrorCode(response.error_code)
        if code is ErrorCode.NONE:
            self._sent_owned, self._sent_topics, self._is_sure = listed, topics, True
            self._follow(response, sent)
        elif code in BEGIN_AGAIN:
            self.give(list(self.owned))
            self._join_next()
        elif code in TRANSIENT or code is ErrorCode.UNRELEASED_INSTANCE_ID:
            await self.pause(BACKOFF_S)
        else:
            self.unexpected("heartbeat", code)

    def _listed(self, places: list[Place]) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        topics: dict[str, list[int]] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(index)
        return [
            ConsumerGroupHeartbeatRequest.TopicPartitions(self.topic_id(name), indexes)
            for name, indexes in topics.items()
        ]

    def _follow(self, response: ConsumerGroupHeartbeatResponse, sent: float) -> None:
        assert response.member_id is not None
        self.member_id, self.generation = response.member_id, response.member_epoch
        if response.assignment is not None:
            self._target = {
                (self.topic_named(topic.topic_id), index): None
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            }
        if not self._surplus():
            self._revoke_at = 0.0
            self.prolong(sent)
        elif not self._revoke_at:
            # Do not prolong: the coordinator's rebalance timeout already runs, since some time after the last `prolong`.
            stubborn = not self.group.quiet and self.random.random() < STUBBORN_SHARE
            longest = self.group.rebalance_ms / 1000 * 2 if stubborn else REVOKING_S
            self._revoke_at = self.world.loop.now + self.random.random() * longest
        if not self.is_late:
            self.take([place for place in self._target if place not in self.owned])

    def _surplus(self) -> list[Place]:
        return [place for place in self.owned if place not in self._target]

    def _revoke(self) -> None:
        surplus = self._surplus()
        if surplus and self.world.loop.now >= self._revoke_at:
            self._revoke_at = 0.0
            self.give(surplus)

    async def leave(self) -> None:
        if self.generation <= 0:
            return
        returns = self.instance_id is not None and self.random.random() < 0.7
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group.name,
            member_id=self.member_id,
            instance_id=self.instance_id,
            member_epoch=LEAVING_TO_RETURN if returns else LEAVING,
        )
        try:
            response: ConsumerGroupHeartbeatResponse = await self.send_request(request, self._version)
        except LOST:
            return  # the member leaves even if the coordinator does not know it
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE and code not in TRANSIENT | BEGIN_AGAIN:
            self.unexpected("leave", code)
