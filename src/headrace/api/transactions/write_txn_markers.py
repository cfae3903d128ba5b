"""WriteTxnMarkers 1–2: writes the end of a transaction to the partitions that this node leads, for its coordinator.

A marker for a partition of __consumer_offsets goes through the group coordinator, which completes or drops its pending offsets. The
response is sent when the markers are committed. An administrator may also write one, to end a hanging transaction (KIP-664).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.api.permissions import CLUSTER_ACTION_OR_ALTER
from headrace.base.clock import Clock
from headrace.base.eager import at_once
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.coordinators.partitioning import GROUPS_TOPIC
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from headrace.records.control import TransactionMarker
from headrace.replication.group_commit import Acknowledgement
from headrace.replication.replicas import Replicas
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

log = logging.getLogger(__name__)

MARKERS_AT_ONCE = 100  # appended before other tasks get to run
MARKER_WAIT_MS = 10_000  # how long a response waits for the in-sync replicas; its sender retries

# Arguments: partition of __consumer_offsets, producer id, producer epoch, marker, transaction version.
EndOffsets = Callable[[int, int, int, TransactionMarker, int], Awaitable[None]]
Marker = WriteTxnMarkersRequest.WritableTxnMarker
Codes = dict[TopicPartition, ErrorCode]
Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult

# Returned as NOT_LEADER_OR_FOLLOWER: the sender expects the errors of a partition leader and retries on this one.
_NOT_READY = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


class WriteTxnMarkersApi:
    def __init__(self, replicas: Replicas, clock: Clock, end_offsets: EndOffsets) -> None:
        self._replicas = replicas
        self._clock = clock
        self._end_offsets = end_offsets

    def services(self) -> list[Service]:
        return [Service(ApiKey.WRITE_TXN_MARKERS, (1, 2), at_once(self.write), CLUSTER_ACTION_OR_ALTER)]

    async def write(self, context: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        if not (
            context.may(Operation.ALTER, Resource.CLUSTER, quietly=True)
            or context.may(Operation.CLUSTER_ACTION, Resource.CLUSTER)
        ):
            return refuse_markers(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        codes: dict[int, Codes] = {}
        waiting: list[Awaitable[None]] = []
        appended = 0
        now_ms = self._clock.now_ms()
        for marker in request.markers:
            of_producer = codes.setdefault(marker.producer_id, {})
            for name in _partitions(marker):
                work = self._write(marker, name, of_producer, now_ms)
                if work is not None:
                    waiting.append(asyncio.ensure_future(work))
                appended += 1
                if appended % MARKERS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        if waiting:
            await asyncio.gather(*waiting)
        return _response(codes)

    def _write(self, marker: Marker, name: TopicPartition, codes: Codes, now_ms: int) -> Awaitable[None] | None:
        """Write one marker. Its result is in `codes` if None is returned, otherwise once the awaitable is done."""
        how = TransactionMarker(marker.transaction_result, marker.coordinator_epoch)
        try:
            partition = self._replicas.get(*name)
            if name.topic == GROUPS_TOPIC:
                ending = self._end_offsets(
                    name.partition, marker.producer_id, marker.producer_epoch, how, marker.transaction_version
                )
                return self._ended(ending, name, codes)
            info = partition.append_marker(
                marker.producer_id, marker.producer_epoch, how, marker.transaction_version, now_ms
            )
        except KafkaError as error:
            self._refuse(name, error, codes)
            return None
        codes[name] = ErrorCode.NONE
        ack = partition.acknowledged(info.last_offset, timeout_ms=MARKER_WAIT_MS)
        return None if ack is None else self._acknowledged(ack, name, codes)

    async def _acknowledged(self, ack: Acknowledgement, name: TopicPartition, codes: Codes) -> None:
        error = await asyncio.shield(ack)  # other requests may wait for the same flush
        if error is not None:
            self._refuse(name, error, codes)

    async def _ended(self, ending: Awaitable[None], name: TopicPartition, codes: Codes) -> None:
        codes[name] = ErrorCode.NONE
        try:
            await ending
        except KafkaError as error:
            self._refuse(name, error, codes)
        except Exception:
            log.exception("the end of a transaction on %s could not be written; its coordinator will retry", name)
            codes[name] = ErrorCode.UNKNOWN_SERVER_ERROR

    @staticmethod
    def _refuse(name: TopicPartition, error: KafkaError, codes: Codes) -> None:
        log.info("a transaction marker for %s was refused: %s", name, error)
        codes[name] = ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code in _NOT_READY else error.code


def refuse_markers(request: WriteTxnMarkersRequest, code: ErrorCode) -> WriteTxnMarkersResponse:
    codes: dict[int, Codes] = {}
    for marker in request.markers:
        codes.setdefault(marker.producer_id, {}).update(dict.fromkeys(_partitions(marker), code))
    return _response(codes)


def _partitions(marker: Marker) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]


def _response(codes: dict[int, Codes]) -> WriteTxnMarkersResponse:
    """Return the results by producer, as Kafka does: a partition that is named twice for a producer has one result."""
    results = []
    for producer_id, of_producer in codes.items():
        topics: dict[str, list[PartitionResult]] = {}
        for (topic, index), code in of_producer.items():
            topics.setdefault(topic, []).append(PartitionResult(partition_index=index, error_code=code))
        results.append(
            Result(
                producer_id=producer_id,
                topics=[TopicResult(name=name, partitions=partitions) for name, partitions in topics.items()],
            )
        )
    return WriteTxnMarkersResponse(markers=results)
