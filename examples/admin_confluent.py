"""Create, inspect, widen, reconfigure, truncate and delete a topic with librdkafka's admin client."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

WAIT_S = 30.0


def done(futures: Mapping[Any, Any]) -> dict[Any, Any]:
    """Wait for the futures of an admin call, one per resource, and return their results."""
    return {key: future.result(WAIT_S) for key, future in futures.items()}


def main(bootstrap: str = "localhost:9092", topic: str = "administered") -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    done(admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "86400000"})]))
    done(admin.create_partitions([NewPartitions(topic, 3)]))
    resource = ConfigResource(ResourceType.TOPIC, topic)
    change = ConfigEntry("retention.bytes", "1000000000", incremental_operation=AlterConfigOpType.SET)
    done(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])]))
    (configs,) = done(admin.describe_configs([resource])).values()
    print(f"retention.ms={configs['retention.ms'].value} retention.bytes={configs['retention.bytes'].value}")

    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        producer.produce(topic, f"record {number}", partition=0)
    producer.flush(WAIT_S)
    done(admin.delete_records([TopicPartition(topic, 0, 4)]))
    (first,) = done(admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()})).values()
    (last,) = done(admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})).values()
    partitions = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    print(f"{len(partitions)} partitions, the first one holds offsets {first.offset} to {last.offset - 1}")
    done(admin.delete_topics([topic]))
    print(f"{topic} is gone")


if __name__ == "__main__":
    main(*sys.argv[1:3])
