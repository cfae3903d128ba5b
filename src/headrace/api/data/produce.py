"""Produce 3–13: one batch per partition, checked record by record, appended and acknowledged.

Version 13 names topics by id. A request with acks=0 gets no response.

A small batch is handled without suspension: decode, check, one write, response. Only large compressed batches are checked in a
thread, and only the first batch of a transaction waits for its coordinator. The connection waits with them, which preserves the order
of a producer's batches. With acks=all the response waits until all in-sync replicas have the batches; later requests do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.api.data.leader_hints import endpoints_of
from headrace.api.data.produce_transactional import TransactionalBatches
from headrace.api.permissions import on_topics
from headrace.base.clock import Clock
from headrace.base.eager import Rest, begin
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.promise import Promise
from headrace.coordinators.partitioning import INTERNAL_TOPICS
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.records.batch import CODEC_MASK, TRANSACTIONAL, BatchHeader
from headrace.records.compression import Codec
from headrace.records.validate_batch import Checked, InvalidRecords, read_produced_header
from headrace.replication.batch_checks import DECOMPRESSED_INLINE_MAX
from headrace.replication.group_commit import Acknowledgement
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas
from headrace.replication.traffic import TopicTraffic
from headrace.replication.verification import Guard, NoVerifier, TransactionVerifier
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import HoldFrame, Service
from headrace.server.frames import CloseConnection

PartitionResponse = ProduceResponse.PartitionProduceResponse
TopicResponse = ProduceResponse.TopicProduceResponse
ADMIN_CLIENT_ID = "__admin_client"  # client id that may write to internal topics: prevents accidents, as in Kafka
ZSTD_VERSION_MIN = 7
LEADER_HINT_VERSION_MIN = 10
# Errors that a well-behaved client may get. As in Kafka, they are not counted as failures and have no log start offset.
_EXPECTED = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


class _Pending(NamedTuple):
    """One batch that must be checked in a thread or verified before it is appended."""

    topic: ProduceRequest.TopicProduceData
    partition_response: PartitionResponse
    partition: Partition
    records: memoryview
    header: BatchHeader
    checked: Checked | None  # None: must be checked in a thread
    guard: Guard | None  # guard of a transactional batch, once it is checked

    @property
    def waits(self) -> bool:
        return self.guard is not None and self.guard.waits


class _Unacknowledged(NamedTuple):
    """One batch that was appended and waits for the disk or for followers."""

    topic: ProduceRequest.TopicProduceData
    partition_response: PartitionResponse
    ack: Acknowledgement


class ProduceApi:
    def __init__(
        self,
        replicas: Replicas,
        image: Callable[[], Image],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        verifier: TransactionVerifier | None = None,
        verification_enabled: Callable[[], bool] = lambda: True,
    ) -> None:
        self._replicas = replicas
        self._image = image
        self._clock = clock
        self._loop = loop
        self._transactional = TransactionalBatches(verifier or NoVerifier(), verification_enabled)

    def services(self) -> list[Service]:
        return [Service(ApiKey.PRODUCE, (3, 13), self.handle, on_topics(Operation.WRITE))]

    def handle(self, context: RequestContext, request: ProduceRequest) -> Any:
        acks = request.acks
        if acks not in (-1, 0, 1):
            return self._refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS)
        now_ms = self._clock.now_ms()
        responses = []
        pending: list[_Pending] = []
        waiting: list[_Unacknowledged] = []
        refused = False
        for topic in request.topic_data:
            results = []
            refusal = None if context.peer.authority.unrestricted else self._refusal(context, topic)
            for data in topic.partition_data:
                partition_response = PartitionResponse(index=data.index)
                results.append(partition_response)
                admitted = guard = None
                try:
                    if refusal is not None:
                        raise refusal
                    partition = self._partition(context, topic, data.index)
                    records = data.records
                    if records is None:
                        raise KafkaError(ErrorCode.INVALID_RECORD, "there is no record batch")
                    assert isinstance(records, memoryview)
                    header = read_produced_header(records)
                    unusual = header.attributes & (CODEC_MASK | TRANSACTIONAL)
                    if unusual:
                        self._check_attributes(context, header, request.transactional_id)
                    if header.size != len(records):
                        records = records[: header.size]
                    partition.admit(acks)
                    admitted = partition
                    if unusual or partition.checks.compresses:
                        compressed = _check_compressed(partition, records, header, now_ms)
                        if compressed is not None and unusual & TRANSACTIONAL:
                            guard = self._transactional.guard(
                                context.api_version, partition, header, request.transactional_id, now_ms
                            )
                        if compressed is None or (guard is not None and guard.waits):
                            pending.append(
                                _Pending(topic, partition_response, partition, records, header, compressed, guard)
                            )
                            continue
                        checked = compressed
                    else:
                        checked = partition.check(records, header, now_ms)
                    ack = self._append(request, partition_response, partition, records, header, checked, now_ms, guard)
                    if ack is not None:
                        waiting.append(_Unacknowledged(topic, partition_response, ack))
                except KafkaError as error:
                    self._refuse(context, topic, partition_response, error, admitted)
                    refused = True
            responses.append(TopicResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=results))
        response = ProduceResponse(responses=responses)
        if pending:
            finished = begin(self._finish(context, request, response, pending, now_ms, waiting))
            return HoldFrame(finished) if isinstance(finished, Rest) else finished
        if waiting:
            return self._acknowledged(context, response, waiting)
        if not acks:
            return self._check_unacknowledged(response)
        return self._with_endpoints(context, response) if refused else response

    def _acknowledged(
        self, context: RequestContext, response: ProduceResponse, waiting: list[_Unacknowledged]
    ) -> Promise[ProduceResponse]:
        """Return the response when all batches are on disk (`flush.messages`) and replicated (acks=all).

        Later requests of the connection are not blocked by it. Other requests may wait for the same flush, so nothing here cancels
        it.
        """
        done: Promise[ProduceResponse] = Promise()
        left = len(waiting)

        def one_done(_: Acknowledgement) -> None:
            nonlocal left
            left -= 1
            if left or done.done():
                return
            if any(one.ack.cancelled() for one in waiting):
                done.cancel()
                return
            for topic, partition_response, ack in waiting:
                error = ack.result()
                if error is not None:
                    self._refuse(context, topic, partition_response, error, None)
            done.set_result(self._with_endpoints(context, response))

        for one in waiting:
            one.ack.add_done_callback(one_done)
        # A connection that is lost cancels the response. Its frame must not stay in memory until the followers have the batches.
        done.add_done_callback(lambda _: waiting.clear())
        return done

    def _with_endpoints(self, context: RequestContext, response: ProduceResponse) -> ProduceResponse:
        """Add the endpoints of the leaders that the response names."""
        hinted = {
            result.current_leader.leader_id
            for topic in response.responses
            for result in topic.partition_responses
            if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        }
        if hinted and context.api_version >= LEADER_HINT_VERSION_MIN:
            response.node_endpoints = [
                ProduceResponse.NodeEndpoint(
                    node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
                for broker, endpoint in endpoints_of(hinted, self._image(), context.peer.listener)
            ]
        return response

    def _refusal(self, context: RequestContext, topic: ProduceRequest.TopicProduceData) -> KafkaError | None:
        name = topic.name
        if context.api_version >= 13:
            found = self._image().topic_by_id(topic.topic_id)
            if found is None:
                return None  # `_partition` raises UNKNOWN_TOPIC_ID
            name = found.name
        if context.may(Operation.WRITE, Resource.TOPIC, name):
            return None
        return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def _partition(self, context: RequestContext, topic: ProduceRequest.TopicProduceData, index: int) -> Partition:
        if context.api_version >= 13:
            found = self._image().topic_by_id(topic.topic_id)
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            topic.name = found.name
        return writable_partition(self._replicas, topic.name, index, context.client_id)

    def _check_attributes(self, context: RequestContext, header: BatchHeader, transactional_id: str | None) -> None:
        if header.codec == Codec.ZSTD and context.api_version < ZSTD_VERSION_MIN:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {ZSTD_VERSION_MIN} or newer")
        if header.is_transactional:
            self._transactional.check(context, header, transactional_id)

    def _append(
        self,
        request: ProduceRequest,
        partition_response: PartitionResponse,
        partition: Partition,
        records: memoryview,
        header: BatchHeader,
        checked: Checked,
        now_ms: int,
        guard: Guard | None,
    ) -> Acknowledgement | None:
        """Append the batch and fill in its response; return what has to be awaited before it is sent, if anything."""
        if checked.converted is not None:
            records, header = checked.converted
        if guard is None:
            info = partition.append(records, header, checked.max_timestamp, now_ms)
        else:
            info = partition.append_transactional(records, header, checked.max_timestamp, now_ms, guard)
        partition_response.base_offset = info.first_offset
        partition_response.log_append_time_ms = info.log_append_time
        partition_response.log_start_offset = partition.log.log_start
        traffic = partition.traffic
        traffic.produces += 1
        if not info.duplicate:
            traffic.messages_in += header.record_count
            traffic.bytes_in += header.size
        if not partition.defers_responses or not request.acks:
            return None
        return partition.acknowledged(info.last_offset, request.acks, request.timeout_ms)

    async def _finish(
        self,
        context: RequestContext,
        request: ProduceRequest,
        response: ProduceResponse,
        pending: list[_Pending],
        now_ms: int,
        waiting: list[_Unacknowledged],
    ) -> ProduceResponse | None:
        checked = [one for batch in pending if (one := await self._check(context, request, batch, now_ms)) is not None]
        for one in await self._verified(context, request.transactional_id, checked):
            assert one.checked is not None
            try:
                one.partition.admit(request.acks)  # the partition may have changed in the meantime
                ack = self._append(
                    request,
                    one.partition_response,
                    one.partition,
                    one.records,
                    one.header,
                    one.checked,
                    now_ms,
                    one.guard,
                )
                if ack is not None:
                    waiting.append(_Unacknowledged(one.topic, one.partition_response, ack))
            except KafkaError as error:
                self._refuse(context, one.topic, one.partition_response, error, one.partition)
        if waiting:
            return await self._acknowledged(context, response, waiting)
        return self._with_endpoints(context, response) if request.acks else self._check_unacknowledged(response)

    async def _check(
        self, context: RequestContext, request: ProduceRequest, one: _Pending, now_ms: int
    ) -> _Pending | None:
        """Check the batch in a thread if that is still to be done; return None if it was refused."""
        if one.checked is not None:
            return one
        partition, header = one.partition, one.header
        try:
            checked = await self._loop.run_in_executor(None, partition.check, one.records, header, now_ms)
            guard = None
            if header.is_transactional:
                guard = self._transactional.guard(
                    context.api_version, partition, header, request.transactional_id, now_ms
                )
            return one._replace(checked=checked, guard=guard)
        except KafkaError as error:
            self._refuse(context, one.topic, one.partition_response, error, partition)
            return None

    async def _verified(
        self, context: RequestContext, transactional_id: str | None, pending: list[_Pending]
    ) -> list[_Pending]:
        """Return the batches that may be appended, once the coordinator has verified those that start a transaction."""
        waiting = [(one.partition.name, one.header) for one in pending if one.waits]
        if not waiting:
            return pending
        assert transactional_id is not None
        errors = iter(await self._transactional.verify(context.api_version, transactional_id, waiting))
        verified = []
        for one in pending:
            error = next(errors) if one.waits else None
            if error is None:
                verified.append(one)
            else:
                self._refuse(context, one.topic, one.partition_response, error, None)
        return verified

    @staticmethod
    def _check_unacknowledged(response: ProduceResponse) -> None:
        """Raise CloseConnection if an acks=0 batch failed, which a client without responses notices only that way."""
        for topic in response.responses:
            for result in topic.partition_responses:
                if result.error_code:
                    raise CloseConnection(
                        f"acks=0 produce to {topic.name}-{result.index} failed with {ErrorCode(result.error_code).name}"
                    )

    def _refuse(
        self,
        context: RequestContext,
        topic: ProduceRequest.TopicProduceData | None,
        partition_response: PartitionResponse,
        error: KafkaError,
        admitted: Partition | None,
    ) -> None:
        """Set the error in the response of one partition.

        `admitted` is the partition that was about to append; as in Kafka, its log start goes into the response.
        """
        set_error(partition_response, error)
        if admitted is not None:
            _count_refusal(admitted.traffic, error)
            if error.code not in _EXPECTED:
                partition_response.log_start_offset = admitted.log.log_start
        if isinstance(error, InvalidRecords):
            partition_response.record_errors = [
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
                for index, text in error.record_errors
            ]
        if (
            error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            and topic is not None
            and context.api_version >= LEADER_HINT_VERSION_MIN
        ):
            known = self._image().partition(topic.name, partition_response.index)
            if known is not None:
                partition_response.current_leader = ProduceResponse.LeaderIdAndEpoch(
                    leader_id=known.leader, leader_epoch=known.leader_epoch
                )

    def _refuse_all(self, request: ProduceRequest, code: ErrorCode) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[
                        PartitionResponse(index=data.index, error_code=code, base_offset=-1)
                        for data in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )


def set_error(partition_response: PartitionResponse, error: KafkaError) -> None:
    partition_response.error_code = error.code
    partition_response.base_offset = partition_response.log_append_time_ms = partition_response.log_start_offset = -1
    partition_response.error_message = error.message or None


def writable_partition(replicas: Replicas, topic: str, index: int, client_id: str | None) -> Partition:
    """Return the partition. Raise KafkaError if this node has none, or if it is internal and the client may not write to it."""
    partition = replicas.get(topic, index)
    if topic in INTERNAL_TOPICS and client_id != ADMIN_CLIENT_ID:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    return partition


def _count_refusal(traffic: TopicTraffic, error: KafkaError) -> None:
    traffic.produces += 1
    if error.code not in _EXPECTED:
        traffic.failed_produces += 1


def _check_compressed(partition: Partition, records: memoryview, header: BatchHeader, now_ms: int) -> Checked | None:
    """Check the batch; return None if a thread has to, because it is large before or after decompression."""
    if partition.checks.needs_thread(header):
        return None
    try:
        return partition.check(records, header, now_ms, DECOMPRESSED_INLINE_MAX)
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            return None
        raise
