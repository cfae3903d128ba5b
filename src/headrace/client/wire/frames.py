"""Frames of requests and responses, as a client encodes and decodes them."""

from __future__ import annotations

from struct import Struct
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.protocol.apis import RESPONSES
from headrace.protocol.compiler import codec
from headrace.protocol.headers import read_response_header, request_header

_SIZE = Struct(">i")


class UnexpectedResponse(HeadraceError):
    """A response does not match its request, and the connection is unusable; or the broker lacks an API."""


def encode_request(message: Any, version: int, correlation_id: int, client_id: str) -> list[bytes | memoryview]:
    """Return the parts of a frame; records are not copied."""
    header = request_header(message.facts.api_key, version, correlation_id, client_id)
    parts: list[Any] = codec(type(message), version).encode_parts(message)  # no request has parts in files
    size = len(header) + sum(map(len, parts))
    return [_SIZE.pack(size) + header + parts[0], *parts[1:]]


def decode_response(key: int, version: int, correlation_id: int, frame: memoryview) -> Any:
    """Decode a frame without its size. Raise UnexpectedResponse if it belongs to another request."""
    found, position = read_response_header(key, version, frame)
    if found != correlation_id:
        raise UnexpectedResponse(f"expected the response to request {correlation_id}, got the one to {found}")
    return codec(RESPONSES[key], version).decode(frame, position)
