"""FindCoordinator: who coordinates a group, transactional id or share partition; many keys from v4."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int8, Int16, Int32, String


@request(10, "0-6", flexible="3+", listeners="broker")
class FindCoordinatorRequest(Struct):
    key: Annotated[String, Field("0-3")] = ""
    key_type: Annotated[Int8, Field("1+")] = 0
    coordinator_keys: Annotated[list[String], Field("4+")] = []


@response(10, "0-6", flexible="3+")
class FindCoordinatorResponse(Struct):
    class Coordinator(Struct):
        key: String = ""
        node_id: Int32 = 0
        host: String = ""
        port: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = ""

    throttle_time_ms: Annotated[Int32, Field("1+", ignorable=True)] = 0
    error_code: Annotated[Int16, Field("0-3")] = 0
    error_message: Annotated[String | None, Field("1-3", ignorable=True)] = ""
    node_id: Annotated[Int32, Field("0-3")] = 0
    host: Annotated[String, Field("0-3")] = ""
    port: Annotated[Int32, Field("0-3")] = 0
    coordinators: Annotated[list[Coordinator], Field("4+")] = []
