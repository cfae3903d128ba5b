"""SaslHandshake 0–1 and SaslAuthenticate 0–2: passed on to the connection's authentication, if it has one."""

from __future__ import annotations

from headrace.base.errors import ErrorCode
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.server.context import RequestContext

_NO_SASL = "this listener does not speak SASL"


def handshake(context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    authentication = context.peer.authentication
    if authentication is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return authentication.handshake(context.peer, context.api_version, request)


def authenticate(context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    authentication = context.peer.authentication
    if authentication is None:
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_NO_SASL)
    return authentication.authenticate(context.peer, request)
