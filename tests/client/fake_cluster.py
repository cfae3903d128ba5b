"""Fake brokers for a sender; a script responds to each request, refuses it or cuts the connection."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

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
    def __init__(self, cluster, node_id):
        self.cluster, self.node_id = cluster, node_id
        self.is_open = self.is_writable = True
        self.waiting = []
        self.features = {}

    def version_for(self, message_type, at_most=None, *, unstable=False):
        return VERSION if message_type is ProduceRequest else 0

    def send(self, message, version):
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

    def send_without_response(self, message, version):
        self.send(message, version)

    async def drained(self):
        await asyncio.sleep(0)

    async def close(self):
        self.cut()

    def cut(self):
        self.is_open = False
        for sent in self.waiting:
            if not sent.future.done():
                sent.future.set_exception(Disconnected("the broker closed the connection"))


class FakeCluster:
    """A cluster whose `script` decides each request: CUT, SILENCE, or (error code, base offset) of each batch."""

    timeout_s = 1.0

    def __init__(self, script, partitions=4, leader=lambda partition: 1):
        self.script = script
        self.partitions = partitions
        self.leader = leader
        self.requests = []
        self.forgotten_leaders = []
        self.refreshed = 0
        self.producer_ids = iter(range(7, 1000))
        self.connections = {}
        self.unknown = {}
        self.down = set()

    def topic_id(self, topic):
        return Uuid(topic.encode().ljust(16, b"\x00"))

    def known_leader(self, partition):
        return None if self.unknown.get(partition) else self.leader(partition.partition)

    def forget_leader(self, partition):
        self.forgotten_leaders.append(partition)
        self.unknown[partition] = True

    async def partition_count(self, topic, create=False):
        return self.partitions

    async def refresh(self, topics, *, create=False):
        self.refreshed += 1
        self.unknown.clear()
        known_topics = [MetadataResponse.MetadataResponseTopic(name=topic) for topic in topics]
        return MetadataResponse(topics=known_topics)

    async def broker(self, node_id, purpose=""):
        if node_id in self.down:
            raise Disconnected(f"cannot connect to broker {node_id}")
        connection = self.connections.get(node_id)
        if connection is None or not connection.is_open:
            connection = self.connections[node_id] = FakeConnection(self, node_id)
        return connection

    async def request(self, message):
        assert isinstance(message, InitProducerIdRequest)
        return InitProducerIdResponse(producer_id=next(self.producer_ids), producer_epoch=0)

    def handle(self, sent):
        if not sent.connection.is_open:
            return
        verdict = self.script(sent)
        if verdict == CUT:
            sent.connection.cut()
        elif verdict != SILENCE and not sent.future.done():
            sent.future.set_result(self.produce_response(sent, verdict))

    def produce_response(self, sent, verdicts):
        topics = {}
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

    def __init__(self, *faults):
        self.faults = list(faults)
        self.log = {}
        self.state = {}

    def __call__(self, sent):
        fault = self.faults.pop(0) if self.faults else None
        if fault in (CUT, SILENCE):
            return fault
        if isinstance(fault, ErrorCode):
            return [self.append(one) if self.has(one) else (fault, -1) for one in sent.batches]
        verdicts = [self.append(batch) for batch in sent.batches]
        return CUT if fault == "written, and cut" else verdicts

    def has(self, batch):
        """Return whether the batch was appended already; such a batch is not refused later."""
        epoch, _, cache = self.state.get((batch.partition, batch.header.producer_id), (-1, -1, {}))
        return epoch == batch.header.producer_epoch and batch.header.base_sequence in cache

    def append(self, batch):
        header, key = batch.header, (batch.partition, batch.header.producer_id)
        log = self.log.setdefault(batch.partition, [])
        epoch, last, cache = self.state.get(key, (-1, -1, {}))
        if header.producer_id >= 0:
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch:
                last, cache = (-1 if epoch >= 0 else header.base_sequence - 1), {}
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
