"""AllocateProducerIds: a broker asks the controller for a block of producer ids."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64


@request(67, "0", flexible="0+", listeners="controller")
class AllocateProducerIdsRequest(Struct):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


@response(67, "0", flexible="0+")
class AllocateProducerIdsResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id_start: Int64 = 0
    producer_id_len: Int32 = 0
