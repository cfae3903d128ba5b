"""Reading partitions from an offset on: one fetch at a time to each leader, records out in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.cluster import Cluster
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from headrace.records.legacy import decode_any_records, iterate_any
from headrace.records.record import Record

LATEST, EARLIEST = -1, -2
FETCH_BYTES = 1 << 20
BY_ID_VERSION_MIN = 13


class Fetched(NamedTuple):
    records: list[Record]
    next_offset: int
    high_watermark: int


class Consumer:
    def __init__(self, cluster: Cluster, *, committed_only: bool = False) -> None:
        self._cluster = cluster
        self._isolation = int(committed_only)

    async def offset(self, partition: TopicPartition, timestamp: int) -> int:
        """LATEST, EARLIEST, or the first offset at or after a time in milliseconds; -1 if there is none."""
        connection = await self._cluster.leader(partition)
        wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition.partition, timestamp=timestamp)
        topic = ListOffsetsRequest.ListOffsetsTopic(name=partition.topic, partitions=[wanted])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=self._isolation, topics=[topic])
        answer: ListOffsetsResponse = await connection.request(request)
        result = answer.topics[0].partitions[0]
        if result.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(result.error_code), str(partition))
        return result.offset

    async def fetch(
        self, partition: TopicPartition, offset: int, *, wait_ms: int = 500, max_bytes: int = FETCH_BYTES
    ) -> Fetched:
        """Records from `offset` on; none if nothing came within `wait_ms`. KafkaError as the broker says."""
        connection = await self._cluster.leader(partition)
        version = connection.version_for(FetchRequest)
        topic = FetchRequest.FetchTopic(
            partitions=[
                FetchRequest.FetchPartition(
                    partition=partition.partition, fetch_offset=offset, partition_max_bytes=max_bytes
                )
            ]
        )
        if version >= BY_ID_VERSION_MIN:
            topic.topic_id = self._cluster.topic_id(partition.topic)
        else:
            topic.topic = partition.topic
        request = FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=max_bytes, isolation_level=self._isolation, topics=[topic]
        )
        answer: FetchResponse = await connection.request(request, version=version)
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        if code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(code), str(partition))
        data = answer.responses[0].partitions[0]
        raw = data.records
        assert raw is None or isinstance(raw, bytes | memoryview)
        aborted = data.aborted_transactions or []
        return _take(raw or b"", offset, data.high_watermark, {(a.producer_id, a.first_offset) for a in aborted})


def _take(data: bytes | memoryview, offset: int, high_watermark: int, aborted: Iterable[tuple[int, int]]) -> Fetched:
    records: list[Record] = []
    next_offset = offset
    open_aborts: set[int] = set()
    waiting = sorted(aborted, key=lambda pair: pair[1])
    for position, header in iterate_any(data):
        while waiting and waiting[0][1] <= header.last_offset:
            open_aborts.add(waiting.pop(0)[0])
        next_offset = max(next_offset, header.next_offset)
        if header.is_control:
            open_aborts.discard(header.producer_id)  # its marker: what comes after it is another transaction
        elif not (header.is_transactional and header.producer_id in open_aborts):
            records += _from(decode_any_records(memoryview(data)[position : position + header.size]), offset)
    return Fetched(records, next_offset, high_watermark)


def _from(records: Iterable[Record], offset: int) -> Iterator[Record]:
    """A fetch begins with the batch that holds the offset, and so with records below it."""
    return (record for record in records if record.offset >= offset)
