"""DeleteTopics 1–6: forwarded to the controller.

The response waits until this broker sees the result in its metadata image.
"""

from __future__ import annotations

from headrace.api.error_responses import code_of
from headrace.api.permissions import on_topics
from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.ids import ZERO_UUID
from headrace.broker.channels.forwarding import Forwarding
from headrace.broker.topic_creation import TopicCreation
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.security.resources import Operation
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service
from headrace.server.frames import EncodedResponse, ReceivedRequest


class DeleteTopicsApi:
    def __init__(self, forwarding: Forwarding, creation: TopicCreation, *, is_enabled: bool) -> None:
        self._forwarding = forwarding
        self._creation = creation
        self._is_enabled = is_enabled

    def services(self) -> list[Service]:
        need = on_topics(Operation.DELETE)
        return [Service(ApiKey.DELETE_TOPICS, (1, 6), self.handle, need, keeps_frame=True)]

    async def handle(
        self, context: RequestContext, received: ReceivedRequest[DeleteTopicsRequest]
    ) -> DeleteTopicsResponse | EncodedResponse[DeleteTopicsResponse]:
        request = received.message
        if not self._is_enabled:
            return _refuse(request, ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
        try:
            response: EncodedResponse[DeleteTopicsResponse] = await self._forwarding.forward(context, received)
        except (OSError, HeadraceError) as error:
            return _refuse(request, code_of(error), str(error))
        deleted = [topic for topic in response.decode().responses if topic.error_code == ErrorCode.NONE]
        deleted_ids = [topic.topic_id for topic in deleted if topic.topic_id != ZERO_UUID]
        names = [topic.name for topic in deleted if topic.topic_id == ZERO_UUID]
        await self._creation.wait_until(
            lambda image: (
                not any(topic_id in image.topic_names for topic_id in deleted_ids)
                and not any(name in image.topics for name in names if name is not None)
            )
        )
        return response


def _refuse(request: DeleteTopicsRequest, code: ErrorCode, message: str) -> DeleteTopicsResponse:
    requested = request.topics or [DeleteTopicsRequest.DeleteTopicState(name=name) for name in request.topic_names]
    return DeleteTopicsResponse(
        responses=[
            DeleteTopicsResponse.DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=message
            )
            for topic in requested
        ]
    )
