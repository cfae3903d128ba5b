"""PushTelemetry: a client delivers its metrics (KIP-714)."""

from __future__ import annotations

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bool, Bytes, Int8, Int16, Int32, Uuid


@request(72, "0", flexible="0+", listeners="broker")
class PushTelemetryRequest(Struct):
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    terminating: Bool = False
    compression_type: Int8 = 0
    metrics: Bytes = b""


@response(72, "0", flexible="0+")
class PushTelemetryResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
