"""AddRaftVoter: a caught-up observer joins the voters of the quorum (KIP-853)."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, String, Uint16, Uuid


@request(80, "0-1", flexible="0+", listeners="broker controller")
class AddRaftVoterRequest(Struct):
    class Listener(Struct):
        name: String = ""
        host: String = ""
        port: Uint16 = 0

    cluster_id: String | None = ""
    timeout_ms: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: list[Listener] = []
    ack_when_committed: Annotated[Bool, Field("1+")] = True


@response(80, "0-1", flexible="0+")
class AddRaftVoterResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
