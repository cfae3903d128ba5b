"""Heartbeat: a classic member keeps its session and hears of rebalances."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, String


@request(12, "0-4", flexible="4+", listeners="broker")
class HeartbeatRequest(Struct):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, Field("3+")] = None


@response(12, "0-4", flexible="4+")
class HeartbeatResponse(Struct):
    throttle_time_ms: Annotated[Int32, Field("1+", ignorable=True)] = 0
    error_code: Int16 = 0
