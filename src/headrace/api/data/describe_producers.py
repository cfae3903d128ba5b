"""DescribeProducers 0: the producers that have written to a partition, with their open transactions."""

from __future__ import annotations

from headrace.api.permissions import on_topics
from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.topics import check_name
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

_UNKNOWN = "This server does not host this topic-partition."

Producers = DescribeProducersResponse.PartitionResponse


class DescribeProducersApi:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def services(self) -> list[Service]:
        return [Service(ApiKey.DESCRIBE_PRODUCERS, (0, 0), self.handle, on_topics(Operation.READ))]

    def handle(self, context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
        permitted = context.permitted(Operation.READ, Resource.TOPIC, [topic.name for topic in request.topics])
        return DescribeProducersResponse(
            topics=[
                DescribeProducersResponse.TopicResponse(
                    name=topic.name,
                    partitions=[
                        self._producers(topic.name, index, topic.name in permitted) for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    def _producers(self, topic: str, index: int, permitted: bool) -> Producers:
        result = Producers(partition_index=index)
        try:
            check_name(topic)
            if not permitted:
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
            partition = self._replicas.get(topic, index)
            partition.check_leader()
            result.active_producers = _active(partition)
        except KafkaError as error:
            unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            result.error_code, result.error_message = error.code, _UNKNOWN if unknown else error.message or None
        return result


def _active(partition: Partition) -> list[DescribeProducersResponse.ProducerState]:
    return [
        DescribeProducersResponse.ProducerState(
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.last_timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.transaction_first_offset,
        )
        for entry in partition.log.producers.entries()
    ]
