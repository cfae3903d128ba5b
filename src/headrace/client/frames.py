"""Requests and responses as frames, seen from the client's side."""

from __future__ import annotations

from struct import Struct
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.protocol.apis import RESPONSES
from headrace.protocol.compiler import codec
from headrace.protocol.headers import read_response_header, request_header

_SIZE = Struct(">i")


class UnexpectedAnswer(HeadraceError):
    """The other side answered something that does not belong to the request; the connection is of no use any more."""


def encode_request(message: Any, version: int, correlation_id: int, client_id: str) -> list[bytes | memoryview]:
    """The parts of a frame; records stay as they are."""
    header = request_header(message.facts.api_key, version, correlation_id, client_id)
    parts: list[Any] = codec(type(message), version).encode_parts(message)  # nothing that we ask lies in files
    size = len(header) + sum(map(len, parts))
    return [_SIZE.pack(size) + header + parts[0], *parts[1:]]


def decode_response(key: int, version: int, correlation_id: int, frame: memoryview) -> Any:
    """`frame` is without its size."""
    found, position = read_response_header(key, version, frame)
    if found != correlation_id:
        raise UnexpectedAnswer(f"expected the answer to request {correlation_id}, got the one to {found}")
    return codec(RESPONSES[key], version).decode(frame, position)
