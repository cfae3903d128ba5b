"""A member of a consumer group (KIP-848): ConsumerGroupHeartbeat; the coordinator assigns."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from bench.group_frames import LOADING
from bench.members import BEAT_S, REBALANCE_MS, Channel
from bench.wire import RETRY_S, BenchFailed
from headrace.base.errors import ErrorCode
from headrace.base.ids import ZERO_UUID
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

VERSION = 1
JOINING, LEAVING = 0, -1
OUT = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)

_Owned = ConsumerGroupHeartbeatRequest.TopicPartitions


class ConsumerMember:
    def __init__(self, channel: Channel, group: str, topic: str, partitions: int) -> None:
        self._channel = channel
        self._group = group
        self._topic = topic
        self._topic_id = ZERO_UUID
        self.id = str(uuid.uuid4())
        self.epoch = JOINING
        self.held: Sequence[int] = ()
        self.settled = False
        self.alive = True

    async def live(self) -> None:
        while self.alive:
            if self.settled:
                await asyncio.sleep(BEAT_S)
            await self.beat()

    async def beat(self) -> None:
        """Send a heartbeat. While not settled, it reports the owned partitions at once, as clients do."""
        request = ConsumerGroupHeartbeatRequest(group_id=self._group, member_id=self.id, member_epoch=self.epoch)
        if self.epoch == JOINING:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names = [self._topic]
            request.topic_partitions = []
        elif not self.settled:
            request.topic_partitions = [_Owned(self._topic_id, list(self.held))] if self.held else []
        answer = await self._channel.ask(request, VERSION)
        if answer.error_code == ErrorCode.NONE:
            self._take(answer)
        elif answer.error_code in OUT:
            self.epoch, self.held, self.settled = JOINING, (), False
        elif answer.error_code in LOADING:
            await asyncio.sleep(RETRY_S)
        else:
            raise BenchFailed(f"a member of {self._group} was answered with error {answer.error_code}")

    def _take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self.epoch = answer.member_epoch
        self.settled = answer.assignment is None
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            self.held = [index for topic in topics for index in topic.partitions]
            self._topic_id = topics[0].topic_id if topics else self._topic_id

    async def leave(self) -> None:
        request = ConsumerGroupHeartbeatRequest(group_id=self._group, member_id=self.id, member_epoch=LEAVING)
        await self._channel.ask(request, VERSION)

    def close(self) -> None:
        self._channel.close()
