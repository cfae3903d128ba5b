"""SaslHandshake 0–1 and SaslAuthenticate 0–2: passed on to the connection's authentication, if it has one."""

from __future__ import annotations

from headrace.api.permissions import NOTHING
from headrace.base.errors import ErrorCode
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

_NO_SASL = "this listener does not speak SASL"


class SaslApi:
    def services(self) -> list[Service]:
        return [
            Service(ApiKey.SASL_HANDSHAKE, (0, 1), handshake, NOTHING),
            Service(ApiKey.SASL_AUTHENTICATE, (0, 2), authenticate, NOTHING),
        ]


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
