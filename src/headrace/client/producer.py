"""Sending batches to the leaders of their partitions, idempotently: a batch is sent again, unchanged, until it is answered for good."""

from __future__ import annotations

import asyncio

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.cluster import RETRY_BACKOFF_S, Cluster
from headrace.client.connection import Disconnected
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.records.batch import advance_sequence
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec

BY_ID_VERSION_MIN = 13


class Producer:
    """Without idempotence a batch whose answer is lost may be written twice; with it, never. One batch in flight per call."""

    def __init__(self, cluster: Cluster, *, acks: int = -1, idempotent: bool = True, timeout_s: float = 30.0) -> None:
        self._cluster = cluster
        self._acks = acks
        self._idempotent = idempotent and acks == -1
        self._timeout_s = timeout_s
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}

    async def send(self, partition: TopicPartition, records: BatchBuilder, codec: Codec = Codec.NONE) -> int:
        """The offset of the first record (-1 with acks=0). KafkaError if the broker refuses it for good or the time is up."""
        if self._idempotent and self._producer_id < 0:
            await self._init_producer_id()
        sequence = self._sequences.get(partition, 0) if self._idempotent else -1
        batch = bytes(
            records.build(
                codec=codec, producer_id=self._producer_id, producer_epoch=self._epoch, base_sequence=sequence
            )
        )
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            try:
                offset = await self._send_once(partition, batch)
            except Disconnected:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            except KafkaError as error:
                if not error.retriable or asyncio.get_running_loop().time() > deadline:
                    raise
            else:
                if self._idempotent:
                    self._sequences[partition] = advance_sequence(sequence, records.count)
                return offset
            await asyncio.sleep(RETRY_BACKOFF_S)
            await self._cluster.refresh([partition.topic])

    async def _init_producer_id(self) -> None:
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            answer: InitProducerIdResponse = await self._cluster.request(InitProducerIdRequest(transactional_id=None))
            if answer.error_code == ErrorCode.NONE:
                self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
                return
            error = KafkaError(ErrorCode(answer.error_code), "no producer id was given")
            if not error.retriable or asyncio.get_running_loop().time() > deadline:
                raise error
            await asyncio.sleep(RETRY_BACKOFF_S)

    async def _send_once(self, partition: TopicPartition, batch: bytes) -> int:
        connection = await self._cluster.leader(partition)
        version = connection.version_for(ProduceRequest)
        topic = ProduceRequest.TopicProduceData(
            partition_data=[ProduceRequest.PartitionProduceData(index=partition.partition, records=batch)]
        )
        if version >= BY_ID_VERSION_MIN:
            topic.topic_id = self._cluster.topic_id(partition.topic)
        else:
            topic.name = partition.topic
        request = ProduceRequest(acks=self._acks, timeout_ms=int(self._timeout_s * 1000), topic_data=[topic])
        if self._acks == 0:
            connection.send_unanswered(request, version)
            return -1
        answer: ProduceResponse = await connection.request(request, version=version, timeout_s=self._timeout_s)
        result = answer.responses[0].partition_responses[0]
        if result.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(result.error_code), result.error_message or str(partition))
        return result.base_offset
