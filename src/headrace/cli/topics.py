"""`headrace topics …`"""

from __future__ import annotations

import json as jsonlib
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.base.ids import uuid_text
from headrace.cli.bootstrap import with_cluster
from headrace.client.cluster import Cluster
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from headrace.protocol.messages.metadata import MetadataResponse

TOPIC = 2
OWN_OPTION = 1


def show_all(bootstrap: str, json: bool) -> None:
    async def work(cluster: Cluster) -> MetadataResponse:
        return await cluster.refresh(None)

    topics = sorted(with_cluster(bootstrap, work).topics, key=lambda topic: topic.name or "")
    if json:
        print(jsonlib.dumps([_as_json(topic) for topic in topics], indent=2))
        return
    table = Table("topic", "partitions", "replicas", "without leader")
    for topic in topics:
        replicas = max((len(partition.replica_nodes) for partition in topic.partitions), default=0)
        orphans = sum(partition.leader_id < 0 for partition in topic.partitions)
        table.add_row(topic.name, str(len(topic.partitions)), str(replicas), str(orphans) if orphans else "")
    Console().print(table)


def create(
    bootstrap: str, name: str, partitions: int, replication_factor: int, config: list[str], if_not_exists: bool
) -> None:
    configs = []
    for text in config:
        option, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--config {text!r}: expected name=value")
        configs.append(CreateTopicsRequest.CreatableTopicConfig(name=option, value=value))
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replication_factor, configs=configs
    )

    async def work(cluster: Cluster) -> CreateTopicsResponse:
        answer: CreateTopicsResponse = await cluster.request(CreateTopicsRequest(topics=[topic]))
        return answer

    result = with_cluster(bootstrap, work).topics[0]
    if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
        print(f"topic {name} exists already")
        return
    _raise(result.error_code, result.error_message)
    print(f"created topic {name} with {result.num_partitions} partition(s)")


def delete(bootstrap: str, names: list[str]) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names])

    async def work(cluster: Cluster) -> DeleteTopicsResponse:
        answer: DeleteTopicsResponse = await cluster.request(request)
        return answer

    for result in with_cluster(bootstrap, work).responses:
        _raise(result.error_code, result.error_message or result.name)
        print(f"deleted topic {result.name}")


def describe(bootstrap: str, name: str, json: bool) -> None:
    async def work(cluster: Cluster) -> tuple[MetadataResponse, DescribeConfigsResponse]:
        metadata = await cluster.refresh([name])
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=TOPIC, resource_name=name, configuration_keys=None
        )
        return metadata, await cluster.request(DescribeConfigsRequest(resources=[resource]))

    metadata, configs = with_cluster(bootstrap, work)
    topic = metadata.topics[0]
    _raise(topic.error_code, name)
    own = {option.name: option.value for option in configs.results[0].configs if option.config_source == OWN_OPTION}
    if json:
        print(jsonlib.dumps({**_as_json(topic), "options": own}, indent=2))
        return
    console = Console()
    console.print(
        f"topic {name}  id {uuid_text(topic.topic_id)}  "
        + "  ".join(f"{key}={value}" for key, value in sorted(own.items()))
    )
    table = Table("partition", "leader", "epoch", "replicas", "in sync", "offline")
    for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index):
        table.add_row(
            str(partition.partition_index),
            str(partition.leader_id) if partition.leader_id >= 0 else "none",
            str(partition.leader_epoch),
            _ids(partition.replica_nodes),
            _ids(partition.isr_nodes),
            _ids(partition.offline_replicas),
        )
    console.print(table)


def _ids(nodes: list[int]) -> str:
    return ",".join(map(str, nodes))


def _as_json(topic: MetadataResponse.MetadataResponseTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": uuid_text(topic.topic_id),
        "partitions": [
            {
                "partition": partition.partition_index,
                "leader": partition.leader_id,
                "leader_epoch": partition.leader_epoch,
                "replicas": partition.replica_nodes,
                "isr": partition.isr_nodes,
            }
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
        ],
    }


def _raise(code: int, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise KafkaError(ErrorCode(code), message or "")
