"""One Fetch request to one leader, for any number of its partitions.

Fetch sessions (KIP-227) are not used: each request is complete. No rack is sent, so no broker redirects us to a
follower (KIP-392).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, TopicPartition, Uuid
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.frames import UnexpectedResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse

FETCH = "fetch"  # connection purpose: a fetch may wait long, and responses arrive in request order
BY_ID_VERSION_MIN = 13
READ_UNCOMMITTED, READ_COMMITTED = 0, 1

# Errors that may pass: another leader, or the same one a little later, may succeed.
TRANSIENT = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class FetchSettings(NamedTuple):
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    partition_max_bytes: int = 1 << 20
    isolation: int = READ_UNCOMMITTED


class FetchTarget(NamedTuple):
    partition: TopicPartition
    offset: int
    # leader epoch of the record before `offset` if the leader has changed since; the broker then reports where its log
    # differs
    last_epoch: int = -1


class FetchedPartition(NamedTuple):
    partition: TopicPartition
    fetch_offset: int
    data: memoryview  # complete batches, perhaps followed by a partial one; the first may begin below the offset
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]  # producer id and first offset; empty unless READ_COMMITTED was requested
    error: ErrorCode
    diverges_at: int | None = (
        None  # offset up to which both logs agree, if the log was truncated below the fetch offset
    )
    isolation: int = READ_UNCOMMITTED  # the requested isolation level

    @property
    def end_offset(self) -> int:
        """Return the offset up to which records may be read now."""
        return self.last_stable_offset if self.isolation == READ_COMMITTED else self.high_watermark


async def fetch_from(
    cluster: Cluster, node_id: int, targets: Sequence[FetchTarget], settings: FetchSettings
) -> list[FetchedPartition]:
    """Fetch from one broker and return its partitions, in its order; it may leave some out.

    Raise Disconnected or NoResponse if it does not respond, UnexpectedResponse for a partition that was not requested,
    KafkaError if the whole request is refused.
    """
    connection = await cluster.broker(node_id, FETCH)
    ids = {target.partition.topic: cluster.topic_id(target.partition.topic) for target in targets}
    # A cluster that does not use topic ids reports none, even if its brokers support them.
    version = connection.version_for(FetchRequest, BY_ID_VERSION_MIN - 1 if ZERO_UUID in ids.values() else None)
    by_topic: dict[str, list[FetchRequest.FetchPartition]] = defaultdict(list)
    for partition, offset, last_epoch in targets:
        by_topic[partition.topic].append(
            FetchRequest.FetchPartition(
                partition=partition.partition,
                current_leader_epoch=cluster.leader_epoch(partition),
                fetch_offset=offset,
                last_fetched_epoch=last_epoch if version >= 12 else -1,
                partition_max_bytes=settings.partition_max_bytes,
            )
        )
    request = FetchRequest(
        max_wait_ms=settings.max_wait_ms,
        min_bytes=settings.min_bytes,
        max_bytes=settings.max_bytes,
        isolation_level=settings.isolation,
        topics=[
            FetchRequest.FetchTopic(topic=name, topic_id=ids[name], partitions=some) for name, some in by_topic.items()
        ],
    )
    timeout_s = cluster.timeout_s + settings.max_wait_ms / 1000
    response: FetchResponse = await connection.request(request, version=version, timeout_s=timeout_s)
    if response.error_code != ErrorCode.NONE:
        raise KafkaError(known_code(response.error_code), f"a fetch from broker {node_id}")
    names = {topic_id: name for name, topic_id in ids.items()} if version >= BY_ID_VERSION_MIN else None
    return [one._replace(isolation=settings.isolation) for one in _partitions(response, targets, names, node_id)]


def known_code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _partitions(
    response: FetchResponse, targets: Iterable[FetchTarget], names: dict[Uuid, str] | None, node_id: int
) -> Iterator[FetchedPartition]:
    waiting = {target.partition: target.offset for target in targets}
    for topic in response.responses:
        name = topic.topic if names is None else names.get(Uuid(bytes(topic.topic_id)))
        for found in topic.partitions:
            partition = TopicPartition(name or "", found.partition_index)
            offset = waiting.pop(partition, None)
            if name is None or offset is None:
                what = f"topic id {bytes(topic.topic_id).hex()}" if name is None else str(partition)
                raise UnexpectedResponse(f"broker {node_id} returned {what}, which the fetch did not request")
            diverges = found.diverging_epoch.epoch >= 0 or found.diverging_epoch.end_offset >= 0
            yield FetchedPartition(
                partition,
                offset,
                _bytes(found.records),
                found.high_watermark,
                found.last_stable_offset,
                found.log_start_offset,
                [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()],
                known_code(found.error_code),
                found.diverging_epoch.end_offset if diverges else None,
            )


def _bytes(records: object) -> memoryview:
    if records is None:
        return memoryview(b"")
    assert isinstance(records, bytes | memoryview), "records received from a network connection are in memory"
    return memoryview(records)
