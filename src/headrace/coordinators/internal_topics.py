"""The internal topics that coordinators keep their state in, configured from the node's options."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.coordinators.partitioning import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from headrace.options.table import Value
from headrace.protocol.messages.create_topics import CreateTopicsRequest

Topic = CreateTopicsRequest.CreatableTopic
Config = CreateTopicsRequest.CreatableTopicConfig


def internal_topics(options: Mapping[str, Value]) -> dict[str, Topic]:
    return {topic.name: topic for topic in (groups_topic(options), transactions_topic(options))}


def groups_topic(options: Mapping[str, Value]) -> Topic:
    return _topic(
        GROUPS_TOPIC,
        options["offsets.topic.num.partitions"],
        options["offsets.topic.replication.factor"],
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": options["offsets.topic.segment.bytes"],
        },
    )


def transactions_topic(options: Mapping[str, Value]) -> Topic:
    return _topic(
        TRANSACTIONS_TOPIC,
        options["transaction.state.log.num.partitions"],
        options["transaction.state.log.replication.factor"],
        {
            "unclean.leader.election.enable": "false",
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": options["transaction.state.log.min.isr"],
            "segment.bytes": options["transaction.state.log.segment.bytes"],
        },
    )


def _topic(name: str, partitions: Value, replicas: Value, configs: Mapping[str, Value]) -> Topic:
    assert isinstance(partitions, int) and isinstance(replicas, int)
    return Topic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[Config(name=key, value=str(value)) for key, value in configs.items()],
    )
