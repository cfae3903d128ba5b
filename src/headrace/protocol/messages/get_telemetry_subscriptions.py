"""GetTelemetrySubscriptions: which metrics a client should push (KIP-714)."""

from __future__ import annotations

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bool, Int8, Int16, Int32, String, Uuid


@request(71, "0", flexible="0+", listeners="broker")
class GetTelemetrySubscriptionsRequest(Struct):
    client_instance_id: Uuid = ZERO_UUID


@response(71, "0", flexible="0+")
class GetTelemetrySubscriptionsResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    accepted_compression_types: list[Int8] = []
    push_interval_ms: Int32 = 0
    telemetry_max_bytes: Int32 = 0
    delta_temporality: Bool = False
    requested_metrics: list[String] = []
