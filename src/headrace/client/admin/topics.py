"""Describes topics, page by page if brokers support it (DescribeTopicPartitions), else by Metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.frames import UnexpectedResponse
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)

PARTITIONS_PER_PAGE = 2000


class PartitionInfo(NamedTuple):
    """A partition with its leader and replicas; brokers are given by their ids."""

    partition: int
    leader: int  # -1 if there is none
    leader_epoch: int
    replicas: list[int]
    isr: list[int]  # in-sync replicas
    offline: list[int]  # replicas on failed disks or on brokers that are down
    eligible: list[int] | None = None  # eligible leaders (KIP-966); None if the broker does not report them
    last_known_eligible: list[int] | None = None  # None if the broker does not report them


class TopicInfo(NamedTuple):
    """A topic with its partitions in ascending order."""

    name: str
    id: Uuid  # 16 bytes
    internal: bool
    partitions: list[PartitionInfo]


async def describe_topics(cluster: Cluster, names: Sequence[str] | None) -> list[TopicInfo]:
    """Return these topics, or all, sorted by name. Raise KafkaError for one that does not exist."""
    connection = await cluster.any_broker()
    try:
        connection.version_for(DescribeTopicPartitionsRequest)
    except UnexpectedResponse:
        return await _by_metadata(cluster, names)
    found: dict[str, TopicInfo] = {}
    requested = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in sorted(names or ())]
    cursor = None
    while names is None or requested:
        request = DescribeTopicPartitionsRequest(
            topics=requested, response_partition_limit=PARTITIONS_PER_PAGE, cursor=cursor
        )
        response: DescribeTopicPartitionsResponse = await cluster.request(request)
        for topic in response.topics:
            _check(topic.error_code, topic.name)
            info = TopicInfo(topic.name or "", topic.topic_id, topic.is_internal, [])
            info = found.setdefault(info.name, info)
            info.partitions.extend(
                PartitionInfo(
                    one.partition_index,
                    one.leader_id,
                    one.leader_epoch,
                    one.replica_nodes,
                    one.isr_nodes,
                    one.offline_replicas,
                    one.eligible_leader_replicas,
                    one.last_known_elr,
                )
                for one in topic.partitions
            )
        if response.next_cursor is None:
            break
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index
        )
    return sorted(found.values())


async def _by_metadata(cluster: Cluster, names: Sequence[str] | None) -> list[TopicInfo]:
    topics = []
    for topic in (await cluster.refresh(names)).topics:
        _check(topic.error_code, topic.name)
        partitions = [
            PartitionInfo(
                one.partition_index,
                one.leader_id,
                one.leader_epoch,
                one.replica_nodes,
                one.isr_nodes,
                one.offline_replicas,
            )
            for one in sorted(topic.partitions, key=lambda one: one.partition_index)
        ]
        topics.append(TopicInfo(topic.name or "", topic.topic_id, topic.is_internal, partitions))
    return sorted(topics)


def _check(code: int, name: str | None) -> None:
    if code != ErrorCode.NONE:
        raise KafkaError(ErrorCode(code), f"topic {name}")
