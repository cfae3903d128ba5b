"""Simulated producers: one that never retries, and an idempotent one.

The idempotent producer resends the same bytes until it knows their outcome.
"""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random

from msgspec import Struct

from headrace.base.errors import RETRIABLE, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.records.compression import Codec
from testkit.simulator.clients import BACKOFF_S, LOST, REQUEST_TIMEOUT_S, Client, World, raise_for

PartitionResponse = ProduceResponse.PartitionProduceResponse

RECORDS_MAX = 5
VALUE_BYTES_MAX = 600
BROKER_TIMEOUT_MS = 1000
PACE_S = 0.06
VERSIONS = (9, 12, 13)  # topics by name, without and with leader hints in the response; topics by id
CODECS = (Codec.NONE, Codec.NONE, Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
# The broker may have written the batch before it returned one of these errors; after any other it has not.
UNCERTAIN = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})


class Batch(Struct):
    call: int
    names: list[str]
    records: bytes


class Producer(Client):
    def __init__(self, name: str, world: World, random: Random, topic: str, batches: int) -> None:
        super().__init__(name, world, random)
        self.topic = topic
        self._left = batches
        self.pace_s = PACE_S
        self._made = 0
        self._version = random.choice(VERSIONS)
        self._codec = random.choice(CODECS)
        self._size_max = random.choice((20, VALUE_BYTES_MAX, VALUE_BYTES_MAX * 4))
        self.place = topic  # the topic's name in the history

    def finish(self) -> None:
        """Send no more batches than those whose outcome is not known yet."""
        self._left = 0

    def names(self) -> list[str]:
        count = self.random.randint(1, RECORDS_MAX)
        self._made += count
        return [f"{self.name}.{number}" for number in range(self._made - count, self._made)]

    def send(self, connection: Connection, acks: int, batches: dict[int, bytes]) -> asyncio.Future[ProduceResponse]:
        """Send one request with a batch for each of these partitions."""
        data = ProduceRequest.TopicProduceData(
            name=self.topic,
            topic_id=self.cluster.topic_id(self.topic),
            partition_data=[
                ProduceRequest.PartitionProduceData(index=index, records=records) for index, records in batches.items()
            ],
        )
        request = ProduceRequest(acks=acks, timeout_ms=BROKER_TIMEOUT_MS, topic_data=[data])
        return connection.send(request, self._version)

    async def partition_responses(self, future: asyncio.Future[ProduceResponse]) -> list[PartitionResponse]:
        response = await asyncio.wait_for(future, REQUEST_TIMEOUT_S)
        return response.responses[0].partition_responses


class PlainProducer(Producer):
    """Never retries: without a response, the outcome stays unknown."""

    def __init__(
        self, name: str, world: World, random: Random, topic: str, batches: int, acks: int, partitions: int
    ) -> None:
        super().__init__(name, world, random, topic, batches)
        self._acks = acks
        self._partitions = partitions

    async def run(self) -> None:
        await self.find_topic(self.topic)
        while self._left > 0 and not self.world.stopping:
            self._left -= 1
            await self._round()
            await self.pause(self.pace_s)
        await self.close()

    async def _round(self) -> None:
        indexes = self.random.sample(range(self._partitions), self.random.randint(1, self._partitions))
        try:
            connection = await self.leader(TopicPartition(self.topic, indexes[0]))
        except (*LOST, KafkaError):
            return
        calls: dict[int, int] = {}
        batches: dict[int, bytes] = {}
        for index in indexes:
            names = self.names()
            batches[index] = bytes(self.batch(names, self._size_max, self._codec))
            calls[index] = self.history.invoke(
                self.name, "send", topic=self.place, partition=index, values=names, once=True
            )
        try:
            partition_responses = await self.partition_responses(self.send(connection, self._acks, batches))
        except LOST as error:
            for call in calls.values():
                self.history.info(call, error=type(error).__name__)
            await connection.close()
            return
        for response in partition_responses:
            self._end(calls[response.index], response)

    def _end(self, call: int, response: PartitionResponse) -> None:
        code = ErrorCode(response.error_code)
        if code is ErrorCode.NONE:
            self.history.ok(call, offset=response.base_offset)
        elif code in UNCERTAIN:
            self.history.info(call, error=code.name)
        else:
            self.history.fail(call, error=code.name)


class IdempotentProducer(Producer):
    """Writes to one partition, with up to `in_flight` batches in flight."""

    def __init__(
        self, name: str, world: World, random: Random, topic: str, batches: int, partition: int, in_flight: int
    ) -> None:
        super().__init__(name, world, random, topic, batches)
        self._partition = TopicPartition(topic, partition)
        self._in_flight = in_flight
        self._producer_id = -1
        self._next_sequence = 0
        self._unsettled: deque[Batch] = deque()

    async def run(self) -> None:
        await self.find_topic(self.topic)
        while self._unsettled or (self._left > 0 and not self.world.stopping):
            if self._producer_id < 0:
                self._producer_id = await self.until_it_works(self._init_producer_id)
                self._next_sequence = 0
            while len(self._unsettled) < self._in_flight and self._left > 0 and not self.world.stopping:
                self._left -= 1
                self._unsettled.append(self._next_batch())
            if not await self._settle():
                await self.pause(BACKOFF_S)
            await self.pause(self.pace_s)
        await self.close()

    async def _init_producer_id(self) -> int:
        connection = await self.cluster.any_broker()
        call = self.history.invoke(self.name, "init_producer_id")
        try:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            response: InitProducerIdResponse = await connection.request(request, timeout_s=REQUEST_TIMEOUT_S)
            raise_for(response.error_code, "InitProducerId")
        except (*LOST, KafkaError) as error:
            self.history.info(call, error=str(error))
            raise
        self.history.ok(call, producer_id=response.producer_id)
        return response.producer_id

    def _next_batch(self) -> Batch:
        names = self.names()
        records = self.batch(
            names,
            self._size_max,
            self._codec,
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=self._next_sequence,
        )
        self._next_sequence += len(names)
        value = {"topic": self.place, "partition": self._partition.partition, "values": names, "once": True}
        return Batch(self.history.invoke(self.name, "send", **value), names, bytes(records))

    async def _settle(self) -> bool:
        """Send all unsettled batches and handle the responses, both in order; return False if a retry is needed."""
        index = self._partition.partition
        try:
            connection = await self.leader(self._partition)
        except (*LOST, KafkaError):
            return False
        try:
            futures = [self.send(connection, -1, {index: batch.records}) for batch in self._unsettled]
            for future in futures:
                (response,) = await self.partition_responses(future)
                if not self._take(response):
                    await self._refresh()
                    return False
        except LOST:
            # Like real producers, ignore any later response on this connection.
            await connection.close()
            return False
        return True

    def _take(self, response: PartitionResponse) -> bool:
        """Handle the response to the first unsettled batch; return False if all unsettled ones must be sent again."""
        code = ErrorCode(response.error_code)
        if code is ErrorCode.NONE:
            self.history.ok(self._unsettled.popleft().call, offset=response.base_offset)
            return True
        if code not in RETRIABLE:
            # Fatal for this producer id: the outcome of its batches is unknown, and they are not resent with the new id.
            for batch in self._unsettled:
                self.history.info(batch.call, error=code.name)
            self._unsettled.clear()
            self._producer_id = -1
        return False

    async def _refresh(self) -> None:
        try:
            await self.cluster.refresh([self.topic])
        except (*LOST, KafkaError):
            return
