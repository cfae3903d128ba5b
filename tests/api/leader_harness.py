"""Partitions on a simulated disk behind the real dispatcher, with a scripted transaction coordinator."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace

from testkit.simulator.disk import SimulatedFiles
from testkit.simulator.loop import SimulatedLoop

from headrace.api.data.fetch import FetchApi
from headrace.api.data.produce import ProduceApi
from headrace.api.transactions.write_txn_markers import WriteTxnMarkersApi
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, NodeId, TopicPartition, Uuid
from headrace.base.metrics import Metrics
from headrace.broker.fetch_sessions import FetchSessions
from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from headrace.records.builder import BatchBuilder
from headrace.replication.group_commit import GroupCommit
from headrace.replication.partition import Partition
from headrace.security.resources import Need, Operation, Resource
from headrace.server.authority import ALLOW_ALL
from headrace.server.context import Peer
from headrace.server.dispatch import Dispatcher, Service
from headrace.server.frames import Deferred
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig

NOW_MS = 1_700_000_000_000
NODE = NodeId(1)
TOPIC_ID = Uuid(b"t" * 16)
PRODUCER = 77
ID = "orders-tx"
NEED = Need(Resource.TOPIC, Operation.WRITE, per_entity=True)


class Coordinator:
    """A stateless transaction coordinator that responds with the configured error codes once `gate` is open."""

    def __init__(self):
        self.requested = []
        self.code = ErrorCode.NONE
        self.codes = {}
        self.gate = None

    async def verify(self, transactional_id, producer_id, producer_epoch, partitions, *, add):
        self.requested.append((transactional_id, producer_id, producer_epoch, list(partitions), add))
        if self.gate is not None:
            await self.gate
        return {partition: self.codes.get(partition, self.code) for partition in partitions}


class Partitions:
    """The part of a node's partition table that the APIs use."""

    def __init__(self):
        self.open = {}

    def get(self, topic, index):
        if (topic, index) not in self.open:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.open[topic, index]


class LeaderHarness:
    def __init__(self, partitions=1, topic="t", authority=ALLOW_ALL, coordinator="one", **options):
        self.loop = SimulatedLoop(Random(7))
        self.files = SimulatedFiles(Random(0))
        self.files.make_dirs("/data")
        self.files.sync_dir("/")
        self.options = options
        self.partitions = Partitions()
        self.names = [TopicPartition(topic, index) for index in range(partitions)]
        self.coordinator = Coordinator()
        self.verification = True
        self.image = SimpleNamespace(
            topic_by_id=lambda topic_id: SimpleNamespace(name=topic) if topic_id == TOPIC_ID else None,
            partition=lambda topic, index: None,
        )
        self.ended_offsets = []
        self.offsets_error = None
        self.peer = Peer("PLAINTEXT", "127.0.0.1", authority=authority)
        clock = SimpleNamespace(now_ms=lambda: NOW_MS)
        verifier = self.coordinator if coordinator else None
        produce = ProduceApi(self.partitions, lambda: self.image, clock, self.loop, verifier, lambda: self.verification)
        fetch = FetchApi(self.partitions, FetchSessions(Random(1), 10), lambda: self.image, self.loop, 1 << 20)
        markers = WriteTxnMarkersApi(self.partitions, clock, self._end_offsets)
        services = [
            Service(ApiKey.PRODUCE, (3, 13), produce.handle, NEED),
            Service(ApiKey.FETCH, (4, 18), fetch.handle, NEED),
            Service(ApiKey.WRITE_TXN_MARKERS, (1, 2), markers.write, NEED),
        ]
        self.dispatcher = Dispatcher({one.key: one for one in services}, bytes, Metrics(), self.loop)
        self.start()

    async def _end_offsets(self, *requested):
        self.ended_offsets.append(requested)
        if self.offsets_error is not None:
            raise self.offsets_error

    def start(self, leader_epoch=0):
        for name in self.names:
            log, _ = Log.open(
                self.files, f"/data/{name}", name, LogConfig(**self.options), topic_id=TOPIC_ID, now_ms=NOW_MS
            )
            partition = Partition(name, TOPIC_ID, NODE, log, 0)
            partition.commit = GroupCommit(log, self.loop, partition.synced, partition.fail)
            partition.configure(1)
            partition.lead(NODE, leader_epoch, (NODE,))
            self.partitions.open[name] = partition

    def restart(self, *, clean):
        for partition in self.partitions.open.values():
            if clean:
                partition.log.close()
            else:
                partition.log.abandon()
        if not clean:
            self.files.process_crash()
        self.start(leader_epoch=1)

    def run(self, work):
        return self.loop.run_until_complete(work)

    def close(self):
        self.loop.close()

    # --- sending

    def send(self, request, version):
        """Send a request; return the response or a task for it, and whether the frame is held until then."""
        frame = memoryview(bytearray(b"".join(encode_request(request, version, 5, "c"))))[4:]
        answer = self.dispatcher.handle(self.peer, frame)
        key = request.facts.api_key
        if isinstance(answer, Deferred):
            return self.loop.create_task(self._wait(answer, key, version)), answer.holds_frame
        return _decode(answer, key, version), False

    @staticmethod
    async def _wait(deferred, key, version):
        return _decode(await deferred.wait(), key, version)

    def send_and_wait(self, request, version):
        answer, _ = self.send(request, version)
        return self.run(answer) if isinstance(answer, asyncio.Future) else answer

    # --- requests

    def produce_request(self, batches, transactional_id=ID, acks=-1, version=12):
        """Build a Produce request from `batches`, which maps partition indexes to bytes."""
        data = [ProduceRequest.PartitionProduceData(index=index, records=batch) for index, batch in batches.items()]
        topic = ProduceRequest.TopicProduceData(
            name=self.names[0].topic if version < 13 else "",
            topic_id=TOPIC_ID if version >= 13 else ZERO_UUID,
            partition_data=data,
        )
        return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[topic])

    def produce(self, sequence=0, epoch=0, index=0, version=12, **options):
        """Produce one batch and return the error code and the base offset."""
        request = self.produce_request({index: batch(sequence, epoch, **options)}, version=version)
        (answer,) = self.send_and_wait(request, version).responses[0].partition_responses
        return ErrorCode(answer.error_code), answer.base_offset

    def mark(
        self, epoch, *, commit=True, version=2, transaction_version=2, coordinator_epoch=3, partitions=None, **fields
    ):
        names = self.names if partitions is None else partitions
        topics = {}
        for name in names:
            topics.setdefault(name.topic, []).append(name.partition)
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=fields.get("producer_id", PRODUCER),
            producer_epoch=epoch,
            transaction_result=commit,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
            topics=[
                WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in topics.items()
            ],
        )
        return marker_codes(self.send_and_wait(WriteTxnMarkersRequest(markers=[marker]), version))

    def fetch_request(self, offset=0, *, committed=True, max_wait_ms=0, index=0):
        partition = FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=self.names[0].topic, partitions=[partition])],
        )

    def fetch(self, offset=0, **options):
        return fetched(self.send_and_wait(self.fetch_request(offset, **options), 12))

    def log(self, index=0):
        return self.partitions.open[self.names[index]].log

    def stable(self, index=0):
        return self.partitions.open[self.names[index]].last_stable_offset


def _decode(answer, key, version):
    """Decode a response, or return None if there is none."""
    return decode_response(key, version, 5, memoryview(b"".join(answer))[4:]) if answer else None


def batch(sequence=0, epoch=0, *, producer_id=PRODUCER, count=1, transactional=True, size=10, codec=0):
    builder = BatchBuilder()
    for number in range(count):
        builder.append(NOW_MS, b"k", b"%d" % (sequence + number) * size)
    return bytes(
        builder.build(
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
            codec=codec,
        )
    )


def fetched(response):
    (topic,) = response.responses
    (data,) = topic.partitions
    return data


def marker_codes(response):
    return {
        (result.producer_id, topic.name, one.partition_index): ErrorCode(one.error_code)
        for result in response.markers
        for topic in result.topics
        for one in topic.partitions
    }
