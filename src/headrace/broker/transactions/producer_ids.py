"""Allocates producer ids from the controller's blocks, fetching the next block before the current one runs out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import NodeId
from headrace.broker.channels.controller_channel import ControllerChannel
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse

PREFETCH_WHEN_LEFT = 100


class NoProducerIds(HeadraceError):
    """The controller allocated no block. Its error code means nothing to a client, which only has to retry."""


class ProducerIds:
    def __init__(self, channel: ControllerChannel, node_id: NodeId, broker_epoch: Callable[[], int]) -> None:
        self._channel = channel
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._next = 0
        self._end = 0
        self._following: tuple[int, int] | None = None  # the next block: first id, and the id after its last
        self._requesting: asyncio.Task[None] | None = None

    async def allocate(self) -> int:
        while self._next == self._end:
            if self._following is not None:
                (self._next, self._end), self._following = self._following, None
            else:
                await asyncio.shield(self._request_block())
        producer_id = self._next
        self._next += 1
        if self._end - self._next < PREFETCH_WHEN_LEFT and self._following is None:
            self._request_block()
        return producer_id

    def _request_block(self) -> asyncio.Task[None]:
        if self._requesting is None or self._requesting.done():
            self._requesting = asyncio.create_task(self._fetch_block())
            self._requesting.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # a prefetch may fail: allocate() requests a block again and then raises
        return self._requesting

    async def _fetch_block(self) -> None:
        try:
            response: AllocateProducerIdsResponse = await self._channel.request(
                AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
            )
        except KafkaError as error:
            raise NoProducerIds(str(error)) from error
        if response.error_code != ErrorCode.NONE:
            raise NoProducerIds(f"the controller responded with {ErrorCode(response.error_code).name}")
        self._following = (response.producer_id_start, response.producer_id_start + response.producer_id_len)
