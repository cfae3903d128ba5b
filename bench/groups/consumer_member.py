"""A member of a consumer group (KIP-848): ConsumerGroupHeartbeat; the coordinator assigns."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from bench.errors import BenchFailed
from bench.groups.frames import LOADING
from bench.groups.members import HEARTBEAT_S, REBALANCE_MS, AsyncConnection
from bench.systems.requests import RETRY_S
from headrace.base.errors import ErrorCode
from headrace.base.ids import ZERO_UUID
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

VERSION = 1
JOINING, LEAVING = 0, -1
FENCING_ERRORS = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)

_Owned = ConsumerGroupHeartbeatRequest.TopicPartitions


class ConsumerMember:
    def __init__(self, connection: AsyncConnection, group: str, topic: str, partitions: int) -> None:
        self._connection = connection
        self._group = group
        self._topic = topic
        self._topic_id = ZERO_UUID
        self.id = str(uuid.uuid4())
        self.epoch = JOINING
        self.assigned: Sequence[int] = ()
        self.settled = False
        self.running = True

    async def run(self) -> None:
        while self.running:
            if self.settled:
                await asyncio.sleep(HEARTBEAT_S)
            await self.heartbeat()

    async def heartbeat(self) -> None:
        """Send a heartbeat. While not settled, it reports the owned partitions at once, as clients do."""
        request = ConsumerGroupHeartbeatRequest(group_id=self._group, member_id=self.id, member_epoch=self.epoch)
        if self.epoch == JOINING:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names = [self._topic]
            request.topic_partitions = []
        elif not self.settled:
            request.topic_partitions = [_Owned(self._topic_id, list(self.assigned))] if self.assigned else []
        response = await self._connection.request(request, VERSION)
        if response.error_code == ErrorCode.NONE:
            self._apply(response)
        elif response.error_code in FENCING_ERRORS:
            self.epoch, self.assigned, self.settled = JOINING, (), False
        elif response.error_code in LOADING:
            await asyncio.sleep(RETRY_S)
        else:
            raise BenchFailed(f"a request of a member of {self._group} failed with error {response.error_code}")

    def _apply(self, response: ConsumerGroupHeartbeatResponse) -> None:
        self.epoch = response.member_epoch
        self.settled = response.assignment is None
        if response.assignment is not None:
            topics = response.assignment.topic_partitions
            self.assigned = [index for topic in topics for index in topic.partitions]
            self._topic_id = topics[0].topic_id if topics else self._topic_id

    async def leave(self) -> None:
        request = ConsumerGroupHeartbeatRequest(group_id=self._group, member_id=self.id, member_epoch=LEAVING)
        await self._connection.request(request, VERSION)

    def close(self) -> None:
        self._connection.close()
