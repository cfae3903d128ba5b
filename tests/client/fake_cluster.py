"""Fake brokers for a sender; a script responds to each request, refuses it or cuts the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition, Uuid
from headrace.client.wire.connection import Disconnected
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.protocol.messages.metadata import MetadataResponse
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.records.batch import read_header
from headrace.records.record import decode_records

VERSION = 13
CUT, SILENCE = "cut", "silence"


class FakeConnection:
    def __init__(self, cluster: Any, node_id: int) -> None:
        self.cluster, self.node_id = cluster, node_id
        self.is_open = self.is_writable = True
        self.waiting: list[SimpleNamespace] = []
        self.features: dict[Any, Any] = {}

    def version_for(self, message_type: type[ProduceRequest], at_most: Any = None, *, unstable: bool = False) -> int:
        return VERSION if message_type is ProduceRequest else 0

    def send(self, message: ProduceRequest, version: int) -> asyncio.Future[Any]:
        if not self.is_open:
            raise Disconnected("it is closed")
        future = asyncio.get_running_loop().create_future()
        sent = SimpleNamespace(connection=self, node_id=self.node_id, batches=[], future=future, message=message)
        for topic in message.topic_data:
            for data in topic.partition_data:
                header = read_header(data.records)
                values = [record.value for record in decode_records(bytes(data.records))]
                sent.batches.append(SimpleNamespace(partition=data.index, header=header, values=values))
        self.waiting.append(sent)
        self.cluster.requests.append(sent)
        asyncio.get_running_loop().call_soon(self.cluster.handle, sent)
        return future

    def send_without_response(self, message: ProduceRequest, version: int) -> None:
        self.send(message, version)

    async def drained(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        self.is_open = False
        for sent in self.waiting:
            if not sent.future.done():
                sent.future.set_exception(Disconnected("the broker closed the connection"))


class FakeCluster:
    """A cluster whose `script` decides each request: CUT, SILENCE, or (error code, base offset) of each batch."""

    timeout_s = 1.0

    def __init__(
        self,
        script: Callable[..., Any] | FakeLog,
        partitions: int = 4,
        leader: Callable[..., Any] = lambda partition: 1,
    ) -> None:
        self.script = script
        self.partitions = partitions
        self.leader = leader
        self.requests: list[SimpleNamespace] = []
        self.forgotten_leaders: list[TopicPartition] = []
        self.refreshed = 0
        self.producer_ids = iter(range(7, 1000))
        self.connections: dict[int, FakeConnection] = {}
        self.unknown: dict[TopicPartition, bool] = {}
        self.down: set[int] = set()

    def topic_id(self, topic: str) -> Uuid:
        return Uuid(topic.encode().ljust(16, b"\x00"))

    def known_leader(self, partition: TopicPartition) -> int | None:
        return None if self.unknown.get(partition) else self.leader(partition.partition)

    def forget_leader(self, partition: TopicPartition) -> None:
        self.forgotten_leaders.append(partition)
        self.unknown[partition] = True

    async def partition_count(self, topic: str, create: bool = False) -> int:
        return self.partitions

    async def refresh(self, topics: Sequence[str], *, create: bool = False) -> MetadataResponse:
        self.refreshed += 1
        self.unknown.clear()
        known_topics = [MetadataResponse.MetadataResponseTopic(name=topic) for topic in topics]
        return MetadataResponse(topics=known_topics)

    async def broker(self, node_id: int, purpose: str = "") -> FakeConnection:
        if node_id in self.down:
            raise Disconnected(f"cannot connect to broker {node_id}")
        connection = self.connections.get(node_id)
        if connection is None or not connection.is_open:
            connection = self.connections[node_id] = FakeConnection(self, node_id)
        return connection

    async def request(self, message: InitProducerIdRequest) -> InitProducerIdResponse:
        assert isinstance(message, InitProducerIdRequest)
        return InitProducerIdResponse(producer_id=next(self.producer_ids), producer_epoch=0)

    def handle(self, sent: SimpleNamespace) -> None:
        if not sent.connection.is_open:
            return
        verdict: Any = self.script(sent)
        if verdict == CUT:
            sent.connection.cut()
        elif verdict != SILENCE and not sent.future.done():
            sent.future.set_result(self.produce_response(sent, verdict))

    def produce_response(self, sent: SimpleNamespace, verdicts: Sequence[tuple[ErrorCode, int]]) -> ProduceResponse:
        topics: dict[str, list[ProduceResponse.PartitionProduceResponse]] = {}
        for batch, (code, offset) in zip(sent.batches, verdicts, strict=True):
            partition_results = ProduceResponse.PartitionProduceResponse(
                index=batch.partition, error_code=code, base_offset=offset, log_start_offset=0
            )
            topics.setdefault("t", []).append(partition_results)
        return ProduceResponse(
            responses=[
                ProduceResponse.TopicProduceResponse(
                    topic_id=self.topic_id(name), partition_responses=partition_results
                )
                for name, partition_results in topics.items()
            ]
        )


class FakeLog:
    """Appends batches with a leader's checks of idempotent producers; `faults` are verdicts for the first requests."""

    def __init__(self, *faults: Any) -> None:
        self.faults = list(faults)
        self.log: dict[int, list[bytes]] = {}
        self.state: dict[tuple[int, int], tuple[int, int, dict[int, int]]] = {}

    def __call__(self, sent: SimpleNamespace) -> list[tuple[ErrorCode, int]] | str:
        fault = self.faults.pop(0) if self.faults else None
        if fault in (CUT, SILENCE):
            return fault
        if isinstance(fault, ErrorCode):
            return [self.append(one) if self.has(one) else (fault, -1) for one in sent.batches]
        verdicts = [self.append(batch) for batch in sent.batches]
        return CUT if fault == "written, and cut" else verdicts

    def has(self, batch: SimpleNamespace) -> bool:
        """Return whether the batch was appended already; such a batch is not refused later."""
        epoch, _, cache = self.state.get((batch.partition, batch.header.producer_id), (-1, -1, {}))
        return epoch == batch.header.producer_epoch and batch.header.base_sequence in cache

    def append(self, batch: SimpleNamespace) -> tuple[ErrorCode, int]:
        header, key = batch.header, (batch.partition, batch.header.producer_id)
        log = self.log.setdefault(batch.partition, [])
        epoch, last, cache = self.state.get(key, (-1, -1, {}))
        if header.producer_id >= 0:
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch:
                last = -1 if epoch >= 0 else header.base_sequence - 1
                cache = {}
            if header.base_sequence in cache:
                return ErrorCode.NONE, cache[header.base_sequence]
            if header.base_sequence != last + 1:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            cache[header.base_sequence] = len(log)
            self.state[key] = header.producer_epoch, header.last_sequence, cache
        offset = len(log)
        log += batch.values
        return ErrorCode.NONE, offset


HERE = TopicPartition("t", 0)
