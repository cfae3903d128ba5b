"""Partitions on a simulated disk behind the real dispatcher, with a scripted transaction coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from testkit.simulator.disk import SimulatedFiles
from testkit.simulator.loop import SimulatedLoop
from tests.replication.replication_samples import elect

from headrace.api.data.fetch import FetchApi
from headrace.api.data.produce import ProduceApi
from headrace.api.transactions.write_txn_markers import WriteTxnMarkersApi
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, NodeId, TopicPartition, Uuid
from headrace.base.metrics import Metrics
from headrace.broker.fetching.fetch_sessions import FetchSessions
from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.apis import ApiKey
from headrace.protocol.declare import Struct
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec
from headrace.records.control import TransactionMarker
from headrace.replication.group_commit import GroupCommit
from headrace.replication.partition import Partition
from headrace.security.resources import Need, Operation, Resource
from headrace.server.authority import ALLOW_ALL
from headrace.server.context import Peer
from headrace.server.dispatch import Dispatcher, Service
from headrace.server.frames import Deferred
from headrace.server.response_writer import ResponseParts
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

    def __init__(self) -> None:
        self.requested: list[tuple[str, int, int, list[TopicPartition], bool]] = []
        self.code = ErrorCode.NONE
        self.codes: dict[TopicPartition, ErrorCode] = {}
        self.gate: asyncio.Future[Any] | None = None

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        self.requested.append((transactional_id, producer_id, producer_epoch, list(partitions), add))
        if self.gate is not None:
            await self.gate
        return {partition: self.codes.get(partition, self.code) for partition in partitions}


class Partitions:
    """The part of a node's partition table that the APIs use."""

    def __init__(self) -> None:
        self.open: dict[TopicPartition, Partition] = {}

    def get(self, topic: str, index: int) -> Partition:
        if (topic, index) not in self.open:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.open[TopicPartition(topic, index)]


class LeaderHarness:
    def __init__(
        self,
        partitions: int = 1,
        topic: str = "t",
        authority: Any = ALLOW_ALL,
        coordinator: str | None = "one",
        **options: Any,
    ) -> None:
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
            brokers={},
        )
        self.ended_offsets: list[tuple[int, int, int, TransactionMarker, int]] = []
        self.offsets_error: RuntimeError | KafkaError | None = None
        self.peer = Peer("PLAINTEXT", "127.0.0.1", authority=authority)
        clock = SimpleNamespace(now_ms=lambda: NOW_MS)
        verifier = self.coordinator if coordinator else None
        produce = ProduceApi(self.partitions, lambda: self.image, clock, self.loop, verifier, lambda: self.verification)  # type: ignore[arg-type, return-value]
        fetch = FetchApi(self.partitions, FetchSessions(Random(1), 10), lambda: self.image, self.loop, 1 << 20, clock)  # type: ignore[arg-type, return-value]
        markers = WriteTxnMarkersApi(self.partitions, clock, self._end_offsets)  # type: ignore[arg-type]
        services = [
            Service(ApiKey.PRODUCE, (3, 13), produce.handle, NEED),
            Service(ApiKey.FETCH, (4, 18), fetch.handle, NEED),
            Service(ApiKey.WRITE_TXN_MARKERS, (1, 2), markers.write, NEED),
        ]
        self.dispatcher = Dispatcher({one.key: one for one in services}, bytes, Metrics(), self.loop)
        self.start()

    async def _end_offsets(self, *requested: Any) -> None:
        self.ended_offsets.append(requested)
        if self.offsets_error is not None:
            raise self.offsets_error

    def start(self, leader_epoch: int = 0) -> None:
        for name in self.names:
            log, _ = Log.open(
                self.files, f"/data/{name}", name, LogConfig(**self.options), topic_id=TOPIC_ID, now_ms=NOW_MS
            )
            partition = Partition(name, TOPIC_ID, NODE, log, 0)
            partition.commit = GroupCommit(log, self.loop, partition.synced, partition.fail)
            partition.configure(1)
            elect(partition, NODE, leader_epoch, (NODE,))
            self.partitions.open[name] = partition

    def restart(self, *, clean: bool) -> None:
        for partition in self.partitions.open.values():
            if clean:
                partition.log.close()
            else:
                partition.log.abandon()
        if not clean:
            self.files.process_crash()
        self.start(leader_epoch=1)

    def run(self, work: Awaitable[Any] | asyncio.Task[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        self.loop.close()

    # --- sending

    def send(self, request: Struct, version: int) -> tuple[Any, bool]:
        """Send a request; return the response or a task for it, and whether the frame is held until then."""
        frame = memoryview(bytearray(b"".join(encode_request(request, version, 5, "c"))))[4:]
        answer = self.run(self._handle(frame))
        key = request.facts.api_key
        if isinstance(answer, Deferred):
            return self.loop.create_task(self._wait(answer, key, version)), answer.holds_frame
        return _decode(answer, key, version), False

    async def _handle(self, frame: memoryview) -> ResponseParts | Deferred | None:
        return self.dispatcher.handle(self.peer, frame)

    @staticmethod
    async def _wait(deferred: Deferred, key: int, version: int) -> Any:
        return _decode(await deferred.wait(), key, version)

    def send_and_wait(self, request: Struct, version: int) -> Any:
        answer, _ = self.send(request, version)
        return self.run(answer) if isinstance(answer, asyncio.Future) else answer

    # --- requests

    def produce_request(
        self, batches: Mapping[int, bytes], transactional_id: str | None = ID, acks: int = -1, version: int = 12
    ) -> ProduceRequest:
        """Build a Produce request from `batches`, which maps partition indexes to bytes."""
        data = [ProduceRequest.PartitionProduceData(index=index, records=batch) for index, batch in batches.items()]
        topic = ProduceRequest.TopicProduceData(
            name=self.names[0].topic if version < 13 else "",
            topic_id=TOPIC_ID if version >= 13 else ZERO_UUID,
            partition_data=data,
        )
        return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[topic])

    def produce(
        self, sequence: int = 0, epoch: int = 0, index: int = 0, version: int = 12, **options: Any
    ) -> tuple[ErrorCode, int]:
        """Produce one batch and return the error code and the base offset."""
        request = self.produce_request({index: batch(sequence, epoch, **options)}, version=version)
        (answer,) = self.send_and_wait(request, version).responses[0].partition_responses
        return ErrorCode(answer.error_code), answer.base_offset

    def mark(
        self,
        epoch: int,
        *,
        commit: bool = True,
        version: int = 2,
        transaction_version: int = 2,
        coordinator_epoch: int = 3,
        partitions: Sequence[TopicPartition] | None = None,
        **fields: Any,
    ) -> dict[tuple[int, str, int], ErrorCode]:
        names = self.names if partitions is None else partitions
        topics: dict[str, list[int]] = {}
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

    def fetch_request(
        self, offset: int = 0, *, committed: bool = True, max_wait_ms: int = 0, index: int = 0
    ) -> FetchRequest:
        partition = FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=self.names[0].topic, partitions=[partition])],
        )

    def fetch(self, offset: int = 0, **options: Any) -> FetchResponse.PartitionData:
        return fetched(self.send_and_wait(self.fetch_request(offset, **options), 12))

    def log(self, index: int = 0) -> Log:
        return self.partitions.open[self.names[index]].log

    def stable(self, index: int = 0) -> int:
        return self.partitions.open[self.names[index]].last_stable_offset


def _decode(answer: Any, key: int, version: int) -> Any:
    """Decode a response, or return None if there is none."""
    return decode_response(key, version, 5, memoryview(b"".join(answer))[4:]) if answer else None


def batch(
    sequence: int = 0,
    epoch: int = 0,
    *,
    producer_id: int = PRODUCER,
    count: int = 1,
    transactional: bool = True,
    size: int = 10,
    codec: Codec = Codec.NONE,
) -> bytes:
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


def fetched(response: FetchResponse) -> FetchResponse.PartitionData:
    (topic,) = response.responses
    (data,) = topic.partitions
    return data


def marker_codes(response: WriteTxnMarkersResponse) -> dict[tuple[int, str, int], ErrorCode]:
    return {
        (result.producer_id, topic.name, one.partition_index): ErrorCode(one.error_code)
        for result in response.markers
        for topic in result.topics
        for one in topic.partitions
    }
