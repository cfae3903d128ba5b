"""BrokerHeartbeat: a broker keeps its session with the controller, asks to be unfenced or to shut down."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, Int64, Uuid


@request(63, "0-2", flexible="0+", listeners="controller")
class BrokerHeartbeatRequest(Struct):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    current_metadata_offset: Int64 = 0
    want_fence: Bool = False
    want_shut_down: Bool = False
    offline_log_dirs: Annotated[list[Uuid], Field("1+", tag=0)] = []
    cordoned_log_dirs: Annotated[list[Uuid] | None, Field("2+", tag=1)] = None


@response(63, "0-2", flexible="0+")
class BrokerHeartbeatResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    is_caught_up: Bool = False
    is_fenced: Bool = True
    should_shut_down: Bool = False
