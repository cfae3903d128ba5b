"""Envelope: a broker forwards a client's request, with its principal, to the controller."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bytes, Int16


@request(58, "0", flexible="0+", listeners="controller")
class EnvelopeRequest(Struct):
    request_data: Bytes = b""
    request_principal: Bytes | None = b""
    client_host_address: Bytes = b""


@response(58, "0", flexible="0+")
class EnvelopeResponse(Struct):
    response_data: Bytes | None = None
    error_code: Int16 = 0
