"""DeleteShareGroupOffsets: drop topics from an empty share group."""

from __future__ import annotations

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, String, Uuid


@request(92, "0", flexible="0+", listeners="broker")
class DeleteShareGroupOffsetsRequest(Struct):
    class DeleteShareGroupOffsetsRequestTopic(Struct):
        topic_name: String = ""

    group_id: String = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = []


@response(92, "0", flexible="0+")
class DeleteShareGroupOffsetsResponse(Struct):
    class DeleteShareGroupOffsetsResponseTopic(Struct):
        topic_name: String = ""
        topic_id: Uuid = ZERO_UUID
        error_code: Int16 = 0
        error_message: String | None = None

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = []
