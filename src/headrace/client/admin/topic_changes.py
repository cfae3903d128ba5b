"""Creates and deletes topics, adds partitions and deletes records; returns an error for each item that was refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.admin.item_errors import refusal
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

AS_THE_CLUSTER_HAS_IT = -1
BY_STATE_VERSION_MIN = 6  # version of DeleteTopics; older ones take a list of names
WHOLE_PARTITION = -1  # as an offset before which to delete: all records


class NewTopic(NamedTuple):
    """A topic to create; `assignments` lists the brokers of each partition, instead of the counts."""

    name: str
    partitions: int = AS_THE_CLUSTER_HAS_IT
    replication_factor: int = AS_THE_CLUSTER_HAS_IT
    configs: Mapping[str, str] = {}
    assignments: Sequence[Sequence[int]] = ()


class NewPartitions(NamedTuple):
    """Partitions to add: `total` is the new count of all partitions, `assignments` the brokers of each new one."""

    total: int
    assignments: Sequence[Sequence[int]] = ()


async def controller(cluster: Cluster) -> Connection:
    """Return a connection to the broker that accepts changes.

    If the controller is not a broker, metadata names any broker, which forwards changes.
    """
    node_id = (await cluster.refresh([])).controller_id
    return await cluster.broker(node_id) if node_id >= 0 else await cluster.any_broker()


async def create_topics(
    cluster: Cluster, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> dict[str, KafkaError | None]:
    requested = [
        CreateTopicsRequest.CreatableTopic(
            name=one.name,
            num_partitions=AS_THE_CLUSTER_HAS_IT if one.assignments else one.partitions,
            replication_factor=AS_THE_CLUSTER_HAS_IT if one.assignments else one.replication_factor,
            assignments=[
                CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                for index, brokers in enumerate(one.assignments)
            ],
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in one.configs.items()
            ],
        )
        for one in topics
    ]
    request = CreateTopicsRequest(topics=requested, timeout_ms=_timeout_ms(cluster), validate_only=validate_only)
    response: CreateTopicsResponse = await (await controller(cluster)).request(request)
    return {one.name: refusal(one.error_code, one.error_message, f"topic {one.name}") for one in response.topics}


async def create_partitions(
    cluster: Cluster, topics: Mapping[str, NewPartitions], *, validate_only: bool = False
) -> dict[str, KafkaError | None]:
    make = CreatePartitionsRequest.CreatePartitionsAssignment
    requested = [
        CreatePartitionsRequest.CreatePartitionsTopic(
            name=name,
            count=one.total,
            assignments=[make(broker_ids=list(brokers)) for brokers in one.assignments] or None,
        )
        for name, one in topics.items()
    ]
    request = CreatePartitionsRequest(topics=requested, timeout_ms=_timeout_ms(cluster), validate_only=validate_only)
    response: CreatePartitionsResponse = await (await controller(cluster)).request(request)
    return {one.name: refusal(one.error_code, one.error_message, f"topic {one.name}") for one in response.results}


async def delete_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, KafkaError | None]:
    connection = await controller(cluster)
    version = connection.version_for(DeleteTopicsRequest)
    request = DeleteTopicsRequest(timeout_ms=_timeout_ms(cluster))
    if version >= BY_STATE_VERSION_MIN:
        request.topics = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
    else:
        request.topic_names = list(names)
    response: DeleteTopicsResponse = await connection.request(request, version=version)
    for name in names:
        cluster.forget_topic(name)
    return {
        one.name or "": refusal(one.error_code, one.error_message, f"topic {one.name}") for one in response.responses
    }


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | KafkaError]:
    """Delete records; return the new first offset of each partition, or why it was not changed."""
    outcomes: dict[TopicPartition, int | KafkaError] = {}
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for partition, offset in before.items():
        try:
            if partition.partition >= await cluster.partition_count(partition.topic):
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(partition))
            by_leader[await cluster.leader_id(partition)][partition] = offset
        except KafkaError as error:
            outcomes[partition] = error
    for leader, some in by_leader.items():
        outcomes |= await delete_records_of(await cluster.broker(leader), some, timeout_ms=_timeout_ms(cluster))
    for partition, outcome in outcomes.items():
        if isinstance(outcome, KafkaError):
            cluster.forget_leader(partition)
    return outcomes


async def delete_records_of(
    leader: Connection, before: Mapping[TopicPartition, int], *, timeout_ms: int
) -> dict[TopicPartition, int | KafkaError]:
    topics: dict[str, list[DeleteRecordsRequest.DeleteRecordsPartition]] = defaultdict(list)
    for (topic, partition), offset in before.items():
        topics[topic].append(DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset))
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=some) for name, some in topics.items()],
        timeout_ms=timeout_ms,
    )
    response: DeleteRecordsResponse = await leader.request(request)
    return {
        topic_partition: refusal(one.error_code, None, topic_partition) or one.low_watermark
        for topic in response.topics
        for one in topic.partitions
        for topic_partition in [TopicPartition(topic.name, one.partition_index)]
    }


def _timeout_ms(cluster: Cluster) -> int:
    return int(cluster.timeout_s * 1000)
