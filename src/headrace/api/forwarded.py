"""What a broker only hands on to the controller: CreatePartitions 0–3, ElectLeaders 0–2, List- and AlterPartitionReassignments,
UpdateFeatures 0–2, UnregisterBroker 0, DescribeQuorum 0–2. The controller asks what the asker may do."""

from __future__ import annotations

from typing import Any

from headrace.api.refusals import code_of, refuse
from headrace.base.errors import ErrorCode, HeadraceError
from headrace.broker.forwarding import Forwarding
from headrace.broker.topic_creation import TopicCreation
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from headrace.server.context import RequestContext


class ForwardedApi:
    def __init__(self, forwarding: Forwarding, creation: TopicCreation) -> None:
        self._forwarding = forwarding
        self._creation = creation

    async def handle(self, context: RequestContext, request: Any) -> Any:
        try:
            return await self._forwarding.forward(request, context.api_version, context.peer, context.client_id)
        except (OSError, HeadraceError) as error:
            return refuse(request, code_of(error), str(error))

    async def create_partitions(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        """Answered when this broker has them open, so that a producer does not find them missing."""
        answer: CreatePartitionsResponse = await self.handle(context, request)
        made = {topic.name for topic in answer.results if topic.error_code == ErrorCode.NONE}
        if made and not request.validate_only:
            wanted = {topic.name: topic.count for topic in request.topics if topic.name in made}
            await self._creation.wait_until(
                lambda image: all(image.partition(name, count - 1) is not None for name, count in wanted.items())
            )
        return answer
