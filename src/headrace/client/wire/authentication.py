"""The SASL login of a connection: agree on a mechanism, then exchange tokens (KIP-43, KIP-152)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client.wire.frames import UnexpectedResponse
from headrace.client.wire.security import Login
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from headrace.client.wire.connection import Connection

HANDSHAKE_VERSION = 1  # version 0 sent tokens without Kafka's headers
ROUNDS_MAX = 10


async def log_in(connection: Connection, login: Login) -> int:
    """Log in and return the session lifetime in milliseconds, 0 if it is that of the connection.

    Raise KafkaError with the broker's message if the login is refused.
    """
    agreed: SaslHandshakeResponse = await connection.send(
        SaslHandshakeRequest(mechanism=login.mechanism), HANDSHAKE_VERSION
    )
    if agreed.error_code != ErrorCode.NONE:
        offered = ", ".join(agreed.mechanisms) or "none"
        raise KafkaError(ErrorCode(agreed.error_code), f"{login.mechanism} is not offered; the broker has {offered}")
    exchange = login.start()
    token: bytes | None = exchange.first()
    version = connection.version_for(SaslAuthenticateRequest)
    for _ in range(ROUNDS_MAX):
        assert token is not None
        response: SaslAuthenticateResponse = await connection.send(SaslAuthenticateRequest(auth_bytes=token), version)
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(response.error_code), response.error_message or "")
        token = exchange.response(bytes(response.auth_bytes))
        if token is None:
            return response.session_lifetime_ms
    raise UnexpectedResponse(f"{login.mechanism} is not done after {ROUNDS_MAX} rounds")
