"""CreateTopics 2–7 and DeleteTopics 1–6: forwarded to the controller.

The response waits until this broker sees the result in its metadata image.
"""

from __future__ import annotations

from headrace.api.permissions import on_topics
from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import ZERO_UUID
from headrace.broker.forwarding import Forwarding
from headrace.broker.topic_creation import TopicCreation
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.security.resources import Operation
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service
from headrace.server.frames import EncodedResponse, ReceivedRequest


class TopicsApi:
    def __init__(self, forwarding: Forwarding, creation: TopicCreation, *, deletion_enabled: bool) -> None:
        self._forwarding = forwarding
        self._creation = creation
        self._deletion_enabled = deletion_enabled

    def services(self) -> list[Service]:
        return [
            Service(ApiKey.CREATE_TOPICS, (2, 7), self.create, on_topics(Operation.CREATE), keeps_frame=True),
            Service(ApiKey.DELETE_TOPICS, (1, 6), self.delete, on_topics(Operation.DELETE), keeps_frame=True),
        ]

    async def create(
        self, context: RequestContext, received: ReceivedRequest[CreateTopicsRequest]
    ) -> CreateTopicsResponse | EncodedResponse[CreateTopicsResponse]:
        request = received.message
        try:
            response: EncodedResponse[CreateTopicsResponse] = await self._forwarding.forward(context, received)
        except (OSError, HeadraceError) as error:
            return CreateTopicsResponse(
                topics=[
                    CreateTopicsResponse.CreatableTopicResult(
                        name=topic.name, error_code=_code(error), error_message=str(error)
                    )
                    for topic in request.topics
                ]
            )
        if not request.validate_only:
            made = [topic.name for topic in response.decode().topics if topic.error_code == ErrorCode.NONE]
            await self._creation.wait_until(lambda image: all(name in image.topics for name in made))
        return response

    async def delete(
        self, context: RequestContext, received: ReceivedRequest[DeleteTopicsRequest]
    ) -> DeleteTopicsResponse | EncodedResponse[DeleteTopicsResponse]:
        request = received.message
        if not self._deletion_enabled:
            return _refuse_deletion(request, ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
        try:
            response: EncodedResponse[DeleteTopicsResponse] = await self._forwarding.forward(context, received)
        except (OSError, HeadraceError) as error:
            return _refuse_deletion(request, _code(error), str(error))
        deleted = [topic for topic in response.decode().responses if topic.error_code == ErrorCode.NONE]
        gone = [topic.topic_id for topic in deleted if topic.topic_id != ZERO_UUID]
        names = [topic.name for topic in deleted if topic.topic_id == ZERO_UUID]
        await self._creation.wait_until(
            lambda image: (
                not any(topic_id in image.topic_names for topic_id in gone)
                and not any(name in image.topics for name in names if name is not None)
            )
        )
        return response


def _code(error: Exception) -> ErrorCode:
    return error.code if isinstance(error, KafkaError) else ErrorCode.REQUEST_TIMED_OUT


def _refuse_deletion(request: DeleteTopicsRequest, code: ErrorCode, message: str) -> DeleteTopicsResponse:
    requested = request.topics or [DeleteTopicsRequest.DeleteTopicState(name=name) for name in request.topic_names]
    return DeleteTopicsResponse(
        responses=[
            DeleteTopicsResponse.DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=message
            )
            for topic in requested
        ]
    )
