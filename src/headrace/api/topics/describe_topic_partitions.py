"""DescribeTopicPartitions 0: topics by name, one page of partitions at a time, with eligible leaders (KIP-966)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.api.permissions import on_topics
from headrace.base.errors import ErrorCode
from headrace.controller.topics import is_valid_name
from headrace.coordinators.partitioning import INTERNAL_TOPICS
from headrace.metadata.image import Broker, Image, Partition, Topic
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

TopicResponse = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Described = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
Cursor = DescribeTopicPartitionsResponse.Cursor


class DescribeTopicPartitionsApi:
    def __init__(self, image: Callable[[], Image], partitions_max: int) -> None:
        self._image = image
        self._partitions_max = partitions_max

    def services(self) -> list[Service]:
        return [Service(ApiKey.DESCRIBE_TOPIC_PARTITIONS, (0, 0), self.describe, on_topics(Operation.DESCRIBE))]

    def describe(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        image = self._image()
        everything = not request.topics
        names = sorted(image.topics) if everything else sorted({topic.name for topic in request.topics})
        cursor = request.cursor
        if cursor is not None and cursor.partition_index < 0:
            code = ErrorCode.INVALID_REQUEST
            return DescribeTopicPartitionsResponse(
                topics=[TopicResponse(name=name, error_code=code) for name in names if not everything]
            )
        if cursor is not None:
            names = [name for name in names if name >= cursor.topic_name]
        permitted = context.permitted(Operation.DESCRIBE, Resource.TOPIC, names, quietly=everything)
        seen = [name for name in names if name in permitted]
        first = cursor.partition_index if cursor is not None and seen[:1] == [cursor.topic_name] else 0
        response = self._page(
            context, image, seen, first, max(min(request.response_partition_limit, self._partitions_max), 1)
        )
        for topic in response.topics:
            topic.topic_authorized_operations = context.operations(Resource.TOPIC, topic.name or "")
        if not everything:
            response.topics += [
                TopicResponse(
                    name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, is_internal=name in INTERNAL_TOPICS
                )
                for name in names
                if name not in permitted
            ]
        return response

    @staticmethod
    def _page(
        context: RequestContext, image: Image, names: Sequence[str], first: int, limit: int
    ) -> DescribeTopicPartitionsResponse:
        listener = context.peer.listener
        live = {broker.id: broker for broker in image.live_brokers() if broker.endpoint(listener) is not None}
        response = DescribeTopicPartitionsResponse(topics=[])
        for name in names:
            if limit == 0:
                response.next_cursor = Cursor(topic_name=name, partition_index=0)
                break
            topic = image.topics.get(name)
            if topic is None:
                bad = not is_valid_name(name)
                code = ErrorCode.INVALID_TOPIC_EXCEPTION if bad else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                response.topics.append(TopicResponse(name=name, error_code=code, is_internal=name in INTERNAL_TOPICS))
            else:
                end = min(first + limit, len(topic.partitions))
                response.topics.append(_topic(topic, range(first, end), live))
                if end < len(topic.partitions):
                    response.next_cursor = Cursor(topic_name=name, partition_index=end)
                    break
                limit -= max(end - first, 0)
            first = 0
        return response


def _topic(topic: Topic, indexes: range, live: Mapping[int, Broker]) -> TopicResponse:
    return TopicResponse(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(index, topic.partitions[index], live) for index in indexes],
    )


def _partition(index: int, partition: Partition, live: Mapping[int, Broker]) -> Described:
    led = partition.leader in live
    return Described(
        error_code=ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader if led else -1,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=partition.offline_replicas(live),
    )
