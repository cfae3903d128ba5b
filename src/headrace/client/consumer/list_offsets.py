"""Looks up offsets of partitions (first, end, or first at or after a time), with one request to each leader."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.fetching import READ_UNCOMMITTED, TRANSIENT, known_code
from headrace.client.retry import Retry
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Disconnected, NoResponse
from headrace.client.wire.frames import UnexpectedResponse
from headrace.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

LATEST, EARLIEST = -1, -2  # in place of a timestamp in milliseconds
NO_OFFSET = -1
CONSUMER = -1  # replica id of a consumer


class ListedOffset(NamedTuple):
    """An offset that a partition's leader found for a timestamp, or the first or end offset."""

    offset: int  # -1 (NO_OFFSET) if no record is at or after the time
    timestamp: int  # time of the record in milliseconds since the epoch; -1 for the first and end offset
    leader_epoch: int  # leader epoch of the record; -1: unknown


async def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation: int = READ_UNCOMMITTED,
    timeout_s: float | None = None,
) -> dict[TopicPartition, ListedOffset]:
    """Return an offset for each requested timestamp; with READ_COMMITTED, the end is the last stable offset.

    Raise KafkaError if one cannot be found: at once if its partition does not exist, else after the timeout (default:
    the cluster's).
    """
    retry = Retry(timeout_s=cluster.timeout_s if timeout_s is None else timeout_s)
    found: dict[TopicPartition, ListedOffset] = {}
    while True:
        failures = await _query_leaders(cluster, timestamps, found, isolation)
        if not failures:
            return found
        for partition in failures:
            cluster.forget_leader(partition)
        await asyncio.sleep(retry.next_pause_s(next(iter(failures.values()))))


async def list_offset(
    cluster: Cluster, partition: TopicPartition, timestamp: int, *, isolation: int = READ_UNCOMMITTED
) -> int:
    return (await list_offsets(cluster, {partition: timestamp}, isolation=isolation))[partition].offset


async def _query_leaders(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    found: dict[TopicPartition, ListedOffset],
    isolation: int,
) -> dict[TopicPartition, Exception]:
    """Request what is missing in `found` and add it there; return the partitions to retry, with the reasons."""
    failures: dict[TopicPartition, Exception] = {}
    by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
    for partition in timestamps:
        if partition not in found:
            try:
                by_leader[await _leader(cluster, partition)].append(partition)
            except (KafkaError, Disconnected, NoResponse) as error:
                if isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                failures[partition] = error

    async def query(leader: int, partitions: list[TopicPartition]) -> None:
        try:
            listed_offsets = await _query(cluster, leader, {one: timestamps[one] for one in partitions}, isolation)
        except (Disconnected, NoResponse) as error:
            failures.update(dict.fromkeys(partitions, error))
            return
        for partition, (code, listed) in listed_offsets.items():
            if code is ErrorCode.NONE:
                found[partition] = listed
            elif code in TRANSIENT:
                failures[partition] = KafkaError(code, str(partition))
            else:
                raise KafkaError(code, str(partition))

    await asyncio.gather(*(query(leader, partitions) for leader, partitions in by_leader.items()))
    return failures


async def _leader(cluster: Cluster, partition: TopicPartition) -> int:
    try:
        return await cluster.leader_id(partition)
    except KafkaError as error:
        # A missing partition is another error than a missing leader, and not worth waiting for.
        if error.code is ErrorCode.LEADER_NOT_AVAILABLE:
            response = await cluster.refresh([partition.topic])
            indexes = [one.partition_index for topic in response.topics for one in topic.partitions]
            code = (
                known_code(response.topics[0].error_code) if response.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            if code is ErrorCode.NONE and partition.partition not in indexes:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                raise KafkaError(code, str(partition)) from error
        raise


async def _query(
    cluster: Cluster, leader: int, timestamps: Mapping[TopicPartition, int], isolation: int
) -> dict[TopicPartition, tuple[ErrorCode, ListedOffset]]:
    connection = await cluster.broker(leader)
    topics: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
    for partition, timestamp in timestamps.items():
        topics[partition.topic].append(
            ListOffsetsRequest.ListOffsetsPartition(
                partition_index=partition.partition,
                current_leader_epoch=cluster.leader_epoch(partition),
                timestamp=timestamp,
            )
        )
    request = ListOffsetsRequest(
        replica_id=CONSUMER,
        isolation_level=isolation,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=some) for name, some in topics.items()],
        timeout_ms=int(cluster.timeout_s * 1000),
    )
    response: ListOffsetsResponse = await connection.request(request, timeout_s=cluster.timeout_s)
    listed = {
        TopicPartition(topic.name, one.partition_index): (
            known_code(one.error_code),
            ListedOffset(one.offset, one.timestamp, one.leader_epoch),
        )
        for topic in response.topics
        for one in topic.partitions
    }
    if listed.keys() != timestamps.keys():
        odd = _names(listed.keys() ^ timestamps.keys())
        raise UnexpectedResponse(f"broker {leader} returned offsets of other partitions than requested: {odd}")
    return listed


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions)))
