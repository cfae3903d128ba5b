"""AddOffsetsToTxn: a producer takes a group's offsets into its transaction (before transaction version 2)."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String


@request(25, "0-4", flexible="3+", listeners="broker")
class AddOffsetsToTxnRequest(Struct):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


@response(25, "0-4", flexible="3+")
class AddOffsetsToTxnResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
