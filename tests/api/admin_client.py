"""An admin client for a node in this process: sends one request at a time, in any version."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from headrace.client.wire.connection import Connection
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest
from headrace.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.builder import BatchBuilder

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


class Admin:
    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._address = (host, port)

    def send_request(self, request: Any, version: int | None = None) -> Any:
        async def run() -> Any:
            connection = await Connection.connect(*self._address)
            try:
                return await connection.request(request, version=version)
            finally:
                await connection.close()

        return asyncio.run(run())

    def create(self, name: str, partitions: int = 1, **options: str) -> None:
        config = CreateTopicsRequest.CreatableTopicConfig
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[config(name=key.replace("_", "."), value=value) for key, value in options.items()],
        )
        [result] = self.send_request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
        assert result.error_code == 0, result.error_message

    def alter(self, kind: int, name: str, *changes: tuple[str, int, str | None]) -> tuple[int, str | None]:
        [answer] = self.send_request(alter_configs_request((kind, name, changes))).responses
        return answer.error_code, answer.error_message

    def describe(self, kind: int, name: str, *keys: str) -> dict[str, Any]:
        [result] = self.send_request(describe_configs_request((kind, name), keys=keys)).results
        assert result.error_code == 0, result.error_message
        return {config.name: config for config in result.configs}

    def produce(self, topic: str, index: int, *values: bytes, producer: tuple[int, int, int] | None = None) -> Any:
        """Produce one batch and return its partition's response; `producer` is its id, epoch and first sequence."""
        builder = BatchBuilder()
        for value in values:
            builder.append(time.time_ns() // 1_000_000, None, value)
        more: dict[str, Any] = (
            {}
            if producer is None
            else dict(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
        )
        data = ProduceRequest.PartitionProduceData(index=index, records=bytes(builder.build(**more)))
        request = ProduceRequest(
            acks=-1, timeout_ms=10_000, topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
        )
        return self.send_request(request, 9).responses[0].partition_responses[0]


def alter_configs_request(*resources: Any, validate_only: bool = False) -> IncrementalAlterConfigsRequest:
    config = IncrementalAlterConfigsRequest.AlterableConfig
    return IncrementalAlterConfigsRequest(
        validate_only=validate_only,
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    config(name=key, config_operation=operation, value=value) for key, operation, value in changes
                ],
            )
            for kind, name, changes in resources
        ],
    )


def describe_configs_request(*resources: tuple[int, str], keys: tuple[str, ...] = ()) -> DescribeConfigsRequest:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        include_synonyms=True,
        resources=[
            resource(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)
            for kind, name in resources
        ],
    )
