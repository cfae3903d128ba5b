"""RemoveRaftVoter: a voter leaves the quorum (KIP-853)."""

from __future__ import annotations

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, String, Uuid


@request(81, "0", flexible="0+", listeners="broker controller")
class RemoveRaftVoterRequest(Struct):
    cluster_id: String | None = ""
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID


@response(81, "0", flexible="0+")
class RemoveRaftVoterResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
