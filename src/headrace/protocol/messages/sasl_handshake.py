"""SaslHandshake: choose a mechanism; after v0 raw tokens follow without Kafka headers."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, String


@request(17, "0-1", listeners="broker controller")
class SaslHandshakeRequest(Struct):
    mechanism: String = ""


@response(17, "0-1")
class SaslHandshakeResponse(Struct):
    error_code: Int16 = 0
    mechanisms: list[String] = []
