"""Metadata 0–13: brokers, topics and leaders; missing topics may be created.

In version 0 an empty list means all topics. Topics can be requested by id from version 12 on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from headrace.api.permissions import on_topics
from headrace.base.errors import ErrorCode
from headrace.base.ids import METADATA_TOPIC, ZERO_UUID, NodeId
from headrace.broker.membership.lost_brokers import LostBrokers
from headrace.broker.topic_creation import TopicCreation
from headrace.controller.topics import is_valid_name
from headrace.coordinators.partitioning import INTERNAL_TOPICS
from headrace.metadata.image import Broker, Image, Partition, Topic
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

BY_ID_VERSION_MIN = 12
NOT_REQUESTED = -(2**31)

TopicResponse = MetadataResponse.MetadataResponseTopic


# Position of topics in the response by their error, as in Kafka. Topics at the same position keep the order of the request.
POSITIONS = {ErrorCode.UNKNOWN_TOPIC_ID: 0, ErrorCode.NONE: 1, ErrorCode.TOPIC_AUTHORIZATION_FAILED: 3}
POSITION_OF_OTHERS = 2


def _position(topic: TopicResponse) -> int:
    return POSITIONS.get(ErrorCode(topic.error_code), POSITION_OF_OTHERS)


class MetadataApi:
    def __init__(
        self,
        image: Callable[[], Image],
        creation: TopicCreation,
        node_id: NodeId,
        cluster_id: str,
        auto_create: bool,
        lost_brokers: LostBrokers,
    ) -> None:
        self._image = image
        self._creation = creation
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._auto_create = auto_create
        self._lost_brokers = lost_brokers

    def services(self) -> list[Service]:
        return [Service(ApiKey.METADATA, (0, 13), self.handle, on_topics(Operation.DESCRIBE))]

    def handle(
        self, context: RequestContext, request: MetadataRequest
    ) -> MetadataResponse | Awaitable[MetadataResponse]:
        if request.topics and request.allow_auto_topic_creation and self._auto_create:
            known = self._image().topics
            missing = {topic.name for topic in request.topics if topic.name is not None and topic.name not in known}
            missing -= {name for name in missing if not is_valid_name(name) or name == METADATA_TOPIC}
            missing = context.permitted(Operation.DESCRIBE, Resource.TOPIC, sorted(missing), quietly=True)
            refused: set[str] = set()
            if missing and not context.may(Operation.CREATE, Resource.CLUSTER, quietly=True):
                refused = missing - context.permitted(Operation.CREATE, Resource.TOPIC, sorted(missing))
            errors = dict.fromkeys(sorted(refused), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if missing - refused:
                return self._create_and_respond(context, request, sorted(missing - refused), errors)
            return self._respond(context, request, errors)
        response = self._respond(context, request, {})
        if self._lost_brokers.has_suspects:
            leaders = {partition.leader_id for topic in response.topics for partition in topic.partitions}
            if self._lost_brokers.suspects_any(leaders):
                return self._respond_when_settled(context, request, leaders)
        return response

    async def _respond_when_settled(
        self, context: RequestContext, request: MetadataRequest, leaders: set[int]
    ) -> MetadataResponse:
        """Respond when it is decided who leads instead of brokers that seem to have died, or after a moment."""
        await self._lost_brokers.settled(leaders)
        return self._respond(context, request, {})

    async def _create_and_respond(
        self, context: RequestContext, request: MetadataRequest, missing: list[str], refused: dict[str, ErrorCode]
    ) -> MetadataResponse:
        errors = await self._creation.create(missing, context.peer, context.client_id)
        return self._respond(context, request, errors | refused)

    def _respond(
        self, context: RequestContext, request: MetadataRequest, errors: dict[str, ErrorCode]
    ) -> MetadataResponse:
        image = self._image()
        listener = context.peer.listener
        live = {broker.id: broker for broker in image.live_brokers() if broker.endpoint(listener) is not None}
        listed = list(live.values())
        for node_id in self._lost_brokers.fenced_a_moment_ago():
            broker = image.brokers.get(node_id)
            if broker is not None and node_id not in live:
                listed.append(broker)
        all_topics = request.topics is None or (context.api_version == 0 and not request.topics)
        operations = request.include_topic_authorized_operations
        if all_topics:
            topics = [
                self._topic(context, topic, live, operations)
                for topic in image.topics.values()
                if context.may(Operation.DESCRIBE, Resource.TOPIC, topic.name, quietly=True)
            ]
        else:
            topics = [
                self._one(context, image, requested, live, operations, errors)
                for requested in {(topic.name, topic.topic_id): topic for topic in request.topics or []}.values()
            ]
            topics.sort(key=_position)
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(
                    node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
                for broker in listed
                if (endpoint := broker.endpoint(listener)) is not None
            ],
            cluster_id=self._cluster_id,
            controller_id=self._node_id if self._node_id in live else next(iter(live), -1),
            topics=topics,
            cluster_authorized_operations=cluster_operations(context, request.include_cluster_authorized_operations),
        )

    def _one(
        self,
        context: RequestContext,
        image: Image,
        requested: MetadataRequest.MetadataRequestTopic,
        live: Mapping[int, Broker],
        operations: bool,
        errors: dict[str, ErrorCode],
    ) -> TopicResponse:
        if requested.name is None or requested.topic_id != ZERO_UUID:
            return self._by_id(context, image, requested, live, operations)
        if not context.may(Operation.DESCRIBE, Resource.TOPIC, requested.name):
            # Refuse before looking it up: the response must not reveal whether the topic exists.
            return TopicResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=requested.name)
        topic = image.topics.get(requested.name)
        if topic is not None:
            return self._topic(context, topic, live, operations)
        code = errors.get(requested.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not is_valid_name(requested.name):
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        known = operations and code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return TopicResponse(
            error_code=code,
            name=requested.name,
            is_internal=requested.name in INTERNAL_TOPICS,
            topic_authorized_operations=context.operations(Resource.TOPIC, requested.name) if known else NOT_REQUESTED,
        )

    def _by_id(
        self,
        context: RequestContext,
        image: Image,
        requested: MetadataRequest.MetadataRequestTopic,
        live: Mapping[int, Broker],
        operations: bool,
    ) -> TopicResponse:
        name = None if context.api_version >= BY_ID_VERSION_MIN else ""
        if context.api_version < BY_ID_VERSION_MIN:
            return TopicResponse(error_code=ErrorCode.INVALID_REQUEST, name=name, topic_id=requested.topic_id)
        topic = image.topic_by_id(requested.topic_id)
        if topic is None:
            return TopicResponse(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=requested.topic_id)
        if not context.may(Operation.DESCRIBE, Resource.TOPIC, topic.name):
            return TopicResponse(
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, topic_id=requested.topic_id
            )
        return self._topic(context, topic, live, operations)

    def _topic(
        self, context: RequestContext, topic: Topic, live: Mapping[int, Broker], operations: bool
    ) -> TopicResponse:
        return TopicResponse(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=[_partition(index, partition, live) for index, partition in enumerate(topic.partitions)],
            topic_authorized_operations=context.operations(Resource.TOPIC, topic.name) if operations else NOT_REQUESTED,
        )


def cluster_operations(context: RequestContext, requested: bool) -> int:
    """Return the bit field of operations that the client may perform on the cluster, 0 if it may not describe it."""
    if not requested:
        return NOT_REQUESTED
    return context.operations(Resource.CLUSTER) if context.may(Operation.DESCRIBE, Resource.CLUSTER) else 0


def _partition(
    index: int, partition: Partition, live: Mapping[int, Broker]
) -> MetadataResponse.MetadataResponsePartition:
    led = partition.leader in live
    return MetadataResponse.MetadataResponsePartition(
        error_code=ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader if led else -1,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=partition.offline_replicas(live),
    )
