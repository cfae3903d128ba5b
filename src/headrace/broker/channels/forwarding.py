"""Forwards requests that only the controller may decide, in an Envelope with the client's principal (KIP-590).

The envelope holds the bytes that the client sent, and the controller's response is a valid response to the client: neither is encoded
again. A broker decodes the response only where it must know what changed.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.broker.channels.controller_channel import ControllerChannel
from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.compiler import codec
from headrace.protocol.messages.embedded import DefaultPrincipalData
from headrace.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from headrace.security.principals import Principal
from headrace.server.context import Peer, RequestContext
from headrace.server.frames import EncodedResponse, ReceivedRequest

PRINCIPAL_VERSION = 0
_CORRELATION_ID = 0


class Forwarding:
    def __init__(self, channel: ControllerChannel) -> None:
        self._channel = channel

    async def forward(self, context: RequestContext, request: ReceivedRequest[Any]) -> EncodedResponse[Any]:
        """Forward a client's request and return the controller's response to it.

        Raise KafkaError if the controller refused the envelope itself.
        """
        data = await self._wrap(request.frame, context.peer)
        return EncodedResponse(context.api_key, context.api_version, data)

    async def send(self, message: Any, version: int, peer: Peer, client_id: str | None) -> Any:
        """Return the controller's response to a request that this broker makes on behalf of a client.

        Raise KafkaError if the controller refused the envelope itself.
        """
        frame = b"".join(encode_request(message, version, _CORRELATION_ID, client_id or ""))[4:]
        data = await self._wrap(frame, peer)
        return decode_response(message.facts.api_key, version, _CORRELATION_ID, memoryview(data))

    async def _wrap(self, frame: bytes, peer: Peer) -> bytes:
        response: EnvelopeResponse = await self._channel.request(
            EnvelopeRequest(
                request_data=frame,
                request_principal=encode_principal(peer.principal),
                client_host_address=_address(peer.address),
            )
        )
        if response.error_code != ErrorCode.NONE or response.response_data is None:
            raise KafkaError(ErrorCode(response.error_code), "the controller refused the forwarded request")
        return bytes(response.response_data)


def encode_principal(principal: Principal) -> bytes:
    data = DefaultPrincipalData(type=principal.type, name=principal.name)
    return PRINCIPAL_VERSION.to_bytes(2, "big") + codec(DefaultPrincipalData, PRINCIPAL_VERSION).encode(data)


def decode_principal(raw: bytes) -> Principal:
    """Decode a principal from `encode_principal`. Raise KafkaError if its version is unknown."""
    if len(raw) < 2 or int.from_bytes(raw[:2], "big") != PRINCIPAL_VERSION:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, "unknown version of the principal")
    data = codec(DefaultPrincipalData, PRINCIPAL_VERSION).decode(raw, 2)
    return Principal(data.type, data.name)


def _address(text: str) -> bytes:
    try:
        return ipaddress.ip_address(text.partition("%")[0]).packed
    except ValueError:
        return b"\x7f\x00\x00\x01"  # a peer without an address is in this process
