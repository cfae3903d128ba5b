"""ControllerRegistration: a controller registers its endpoints and features with the active one (KIP-919)."""

from __future__ import annotations

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, String, Uint16, Uuid


@request(70, "0", flexible="0+", listeners="controller")
class ControllerRegistrationRequest(Struct):
    class Listener(Struct):
        name: String = ""
        host: String = ""
        port: Uint16 = 0
        security_protocol: Int16 = 0

    class Feature(Struct):
        name: String = ""
        min_supported_version: Int16 = 0
        max_supported_version: Int16 = 0

    controller_id: Int32 = 0
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: Bool = False
    listeners: list[Listener] = []
    features: list[Feature] = []


@response(70, "0", flexible="0+")
class ControllerRegistrationResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
