"""What a controller listener answers: registration, heartbeats, forwarded requests, blocks of producer ids, and the metadata log itself."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from typing import Any

from headrace.base.clock import Clock
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC_ID
from headrace.base.waiters import OffsetWaiters
from headrace.broker.forwarding import decode_principal
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.quorum.driver import QuorumDriver
from headrace.server.connection import CloseConnection, Deferred, FrameHandler
from headrace.server.context import Peer, RequestContext
from headrace.server.outlet import joined
from headrace.statemachine.journal import NotLeader
from headrace.statemachine.runtime import Runtime

METADATA_WAIT_MS_MAX = 500
METADATA_FETCH_BYTES_MAX = 8 << 20


class ControllerApi:
    def __init__(
        self,
        runtime: Callable[[], Runtime[Any, Any]],
        driver: QuorumDriver,
        cluster_id: str,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Callable[[], FrameHandler],
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._cluster_id = cluster_id
        self._clock = clock
        self._loop = loop
        self._dispatcher = dispatcher
        self._waiters = OffsetWaiters()
        driver.on_committed(self._waiters.advance)

    async def register(self, context: RequestContext, request: BrokerRegistrationRequest) -> Any:
        return await self._decide(request, lambda code, text: BrokerRegistrationResponse(error_code=code))

    async def heartbeat(self, context: RequestContext, request: BrokerHeartbeatRequest) -> Any:
        return await self._decide(request, lambda code, text: BrokerHeartbeatResponse(error_code=code))

    async def allocate_producer_ids(self, context: RequestContext, request: AllocateProducerIdsRequest) -> Any:
        return await self._decide(request, lambda code, text: AllocateProducerIdsResponse(error_code=code))

    async def create_topics(self, context: RequestContext, request: CreateTopicsRequest) -> Any:
        result = CreateTopicsResponse.CreatableTopicResult
        return await self._decide(
            request,
            lambda code, text: CreateTopicsResponse(
                topics=[result(name=topic.name, error_code=code, error_message=text) for topic in request.topics]
            ),
        )

    async def delete_topics(self, context: RequestContext, request: DeleteTopicsRequest) -> Any:
        result = DeleteTopicsResponse.DeletableTopicResult
        names = [topic.name for topic in request.topics] or request.topic_names
        return await self._decide(
            request,
            lambda code, text: DeleteTopicsResponse(
                responses=[result(name=name, error_code=code, error_message=text) for name in names]
            ),
        )

    async def _decide(self, request: Any, refuse: Callable[[ErrorCode, str], Any]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()

        def tell(answer: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(error)

        self._runtime().submit(request, self._clock.now_ms(), tell)
        try:
            return await future
        except KafkaError as error:
            return refuse(error.code, error.message)
        except NotLeader as error:
            return refuse(ErrorCode.NOT_CONTROLLER, str(error))
        except OSError as error:
            return refuse(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log could not be written: {error.strerror or error}"
            )

    # --- forwarded requests

    async def envelope(self, context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
        """The inner request is answered as if its sender had come to this listener."""
        try:
            principal = decode_principal(request.request_principal or b"")
            address = str(ipaddress.ip_address(request.client_host_address))
            peer = Peer(context.peer.listener, address, principal=principal)
            answer = self._dispatcher().handle(peer, memoryview(request.request_data))
        except (DecodeError, KafkaError) as error:
            code = error.code if isinstance(error, KafkaError) else ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
            return EnvelopeResponse(error_code=code)
        except (CloseConnection, ValueError):
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        if isinstance(answer, Deferred):
            answer = await answer.wait()
        if answer is None:
            return EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        return EnvelopeResponse(response_data=joined(answer)[4:])

    # --- the metadata log

    async def fetch(self, context: RequestContext, request: FetchRequest) -> FetchResponse:
        """For observers of the quorum: committed batches from an offset on, or a wait for more."""
        try:
            wanted = self._check_fetch(request)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        if wanted.fetch_offset >= self._driver.high_watermark and request.max_wait_ms > 0:
            await self._more_than(wanted.fetch_offset, min(request.max_wait_ms, METADATA_WAIT_MS_MAX) / 1000)
        high_watermark = self._driver.high_watermark
        data = FetchResponse.PartitionData(
            high_watermark=high_watermark,
            last_stable_offset=high_watermark,
            log_start_offset=self._driver.log.log.log_start,
            current_leader=FetchResponse.LeaderIdAndEpoch(
                leader_id=self._driver.raft.node_id, leader_epoch=self._driver.raft.epoch
            ),
            aborted_transactions=None,
            records=b"",
        )
        if wanted.fetch_offset < high_watermark:
            size = max(1, min(wanted.partition_max_bytes, METADATA_FETCH_BYTES_MAX))
            data.records = self._driver.log.read_bytes(wanted.fetch_offset, high_watermark, size)
        topic = FetchResponse.FetchableTopicResponse(topic_id=METADATA_TOPIC_ID, partitions=[data])
        return FetchResponse(responses=[topic])

    def _check_fetch(self, request: FetchRequest) -> FetchRequest.FetchPartition:
        if request.cluster_id is not None and request.cluster_id != self._cluster_id:
            raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)
        if not self._driver.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if (
            len(request.topics) != 1
            or len(request.topics[0].partitions) != 1
            or request.topics[0].topic_id != METADATA_TOPIC_ID
        ):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        wanted = request.topics[0].partitions[0]
        if wanted.partition != 0 or not 0 <= wanted.fetch_offset <= self._driver.log.end_offset:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return wanted

    async def _more_than(self, offset: int, wait_s: float) -> None:
        future: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        waiter = self._waiters.add(offset + 1, wake, lambda error: wake())
        timer = self._loop.call_later(wait_s, wake)
        try:
            await future
        finally:
            self._waiters.cancel(waiter)
            timer.cancel()
