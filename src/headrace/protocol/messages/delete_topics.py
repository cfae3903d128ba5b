"""DeleteTopics: by name, or by name or id from v6."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, String, Uuid


@request(20, "1-6", flexible="4+", listeners="broker controller")
class DeleteTopicsRequest(Struct):
    class DeleteTopicState(Struct):
        name: String | None = None
        topic_id: Uuid = ZERO_UUID

    topics: Annotated[list[DeleteTopicState], Field("6+")] = []
    topic_names: Annotated[list[String], Field("1-5", ignorable=True)] = []
    timeout_ms: Int32 = 0


@response(20, "1-6", flexible="4+")
class DeleteTopicsResponse(Struct):
    class DeletableTopicResult(Struct):
        name: Annotated[String | None, Field(nullable="6+")] = ""
        topic_id: Annotated[Uuid, Field("6+", ignorable=True)] = ZERO_UUID
        error_code: Int16 = 0
        error_message: Annotated[String | None, Field("5+", ignorable=True)] = None

    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = []
