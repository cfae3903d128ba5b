"""CreateTopics 2–7: forwarded to the controller.

The response waits until this broker sees the result in its metadata image.
"""

from __future__ import annotations

from headrace.api.error_responses import code_of
from headrace.api.permissions import on_topics
from headrace.base.errors import ErrorCode, HeadraceError
from headrace.broker.channels.forwarding import Forwarding
from headrace.broker.topic_creation import TopicCreation
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.security.resources import Operation
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service
from headrace.server.frames import EncodedResponse, ReceivedRequest


class CreateTopicsApi:
    def __init__(self, forwarding: Forwarding, creation: TopicCreation) -> None:
        self._forwarding = forwarding
        self._creation = creation

    def services(self) -> list[Service]:
        need = on_topics(Operation.CREATE)
        return [Service(ApiKey.CREATE_TOPICS, (2, 7), self.handle, need, keeps_frame=True)]

    async def handle(
        self, context: RequestContext, received: ReceivedRequest[CreateTopicsRequest]
    ) -> CreateTopicsResponse | EncodedResponse[CreateTopicsResponse]:
        request = received.message
        try:
            response: EncodedResponse[CreateTopicsResponse] = await self._forwarding.forward(context, received)
        except (OSError, HeadraceError) as error:
            return CreateTopicsResponse(
                topics=[
                    CreateTopicsResponse.CreatableTopicResult(
                        name=topic.name, error_code=code_of(error), error_message=str(error)
                    )
                    for topic in request.topics
                ]
            )
        if not request.validate_only:
            created = [topic.name for topic in response.decode().topics if topic.error_code == ErrorCode.NONE]
            await self._creation.wait_until(lambda image: all(name in image.topics for name in created))
        return response
