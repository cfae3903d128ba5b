"""Requests that a broker only forwards to the controller, which also authorizes them.

CreatePartitions 0–3, ElectLeaders 0–2, ListPartitionReassignments 0, AlterPartitionReassignments 0–1, UpdateFeatures 0–2,
UnregisterBroker 0, DescribeQuorum 0–2, AddRaftVoter 0–1 and RemoveRaftVoter 0.
"""

from __future__ import annotations

from typing import Any

from headrace.api.error_responses import code_of, refuse
from headrace.api.permissions import ALTER_CLUSTER_FORWARDED, DESCRIBE_CLUSTER_FORWARDED, on_topics
from headrace.base.errors import ErrorCode, HeadraceError
from headrace.broker.channels.forwarding import Forwarding
from headrace.broker.topic_creation import TopicCreation
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from headrace.security.resources import Need, Operation
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service
from headrace.server.frames import EncodedResponse, ReceivedRequest


class ForwardedApi:
    def __init__(self, forwarding: Forwarding, creation: TopicCreation) -> None:
        self._forwarding = forwarding
        self._creation = creation

    def services(self) -> list[Service]:
        def forwarded(key: ApiKey, versions: tuple[int, int], need: Need) -> Service:
            return Service(key, versions, self.handle, need, keeps_frame=True)

        return [
            Service(
                ApiKey.CREATE_PARTITIONS,
                (0, 3),
                self.create_partitions,
                on_topics(Operation.ALTER),
                keeps_frame=True,
            ),
            forwarded(ApiKey.ELECT_LEADERS, (0, 2), ALTER_CLUSTER_FORWARDED),
            forwarded(ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 1), ALTER_CLUSTER_FORWARDED),
            forwarded(ApiKey.LIST_PARTITION_REASSIGNMENTS, (0, 0), DESCRIBE_CLUSTER_FORWARDED),
            forwarded(ApiKey.DESCRIBE_QUORUM, (0, 2), DESCRIBE_CLUSTER_FORWARDED),
            forwarded(ApiKey.UPDATE_FEATURES, (0, 2), ALTER_CLUSTER_FORWARDED),
            forwarded(ApiKey.UNREGISTER_BROKER, (0, 0), ALTER_CLUSTER_FORWARDED),
            forwarded(ApiKey.ADD_RAFT_VOTER, (0, 1), ALTER_CLUSTER_FORWARDED),
            forwarded(ApiKey.REMOVE_RAFT_VOTER, (0, 0), ALTER_CLUSTER_FORWARDED),
        ]

    async def handle(self, context: RequestContext, received: ReceivedRequest[Any]) -> Any:
        try:
            return await self._forwarding.forward(context, received)
        except (OSError, HeadraceError) as error:
            return refuse(received.message, code_of(error), str(error))

    async def create_partitions(
        self, context: RequestContext, received: ReceivedRequest[CreatePartitionsRequest]
    ) -> CreatePartitionsResponse | EncodedResponse[CreatePartitionsResponse]:
        """Forward the request, and respond when this broker has opened the partitions, so that producers find them."""
        request = received.message
        response: CreatePartitionsResponse | EncodedResponse[CreatePartitionsResponse]
        response = await self.handle(context, received)
        if isinstance(response, CreatePartitionsResponse):
            return response  # every topic has failed
        created = {topic.name for topic in response.decode().results if topic.error_code == ErrorCode.NONE}
        if created and not request.validate_only:
            requested = {topic.name: topic.count for topic in request.topics if topic.name in created}
            await self._creation.wait_until(
                lambda image: all(image.partition(name, count - 1) is not None for name, count in requested.items())
            )
        return response
