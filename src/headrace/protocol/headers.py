"""Request and response headers, hand-written because they are on the path of every request.

A flexible body has a flexible header, with two exceptions: client_id keeps its int16 length, and the ApiVersions response
always has header v0, because the client does not yet know the server's versions (KIP-511).
"""

from __future__ import annotations

import struct

from headrace.protocol.apis import FLEXIBLE_FROM, ApiKey
from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.primitives import skip_tags
from headrace.protocol.types import Buffer

_REQUEST = struct.Struct(">hhih")
_RESPONSE_V0 = struct.Struct(">i")
_RESPONSE_V1 = struct.Struct(">ix")
_unpack_request = _REQUEST.unpack_from
_FAULTS = (struct.error, IndexError, ValueError)


def read_request_header(buffer: Buffer, position: int = 0) -> tuple[int, int, int, str | None, int]:
    """Return key, version, correlation id, client id and the position of the body; raise DecodeError if malformed.

    The version is not checked, because ApiVersions must respond to unknown versions too.
    """
    try:
        api_key, api_version, correlation_id, length = _unpack_request(buffer, position)
        start = position + 10
        if length >= 0:
            position = start + length
            if position > len(buffer):
                raise IndexError
            client_id = str(buffer[start:position], "utf-8")
        else:
            client_id = None
            position = start
        if api_version >= FLEXIBLE_FROM[api_key]:
            tags = buffer[position]
            position += 1
            if tags:
                position = skip_tags(buffer, position, tags)
        return api_key, api_version, correlation_id, client_id, position
    except KeyError:
        raise DecodeError(f"RequestHeader: no API has key {api_key}") from None
    except _FAULTS as error:
        raise DecodeError(f"RequestHeader: {str(error) or 'the bytes end too early'}") from error


def request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    name = b"" if client_id is None else client_id.encode()
    try:
        head = _REQUEST.pack(api_key, api_version, correlation_id, -1 if client_id is None else len(name))
    except struct.error as error:
        raise EncodeError(f"RequestHeader: {error}") from error
    return head + name + (b"\x00" if api_version >= FLEXIBLE_FROM[api_key] else b"")


def has_flexible_response_header(api_key: int, api_version: int) -> bool:
    return api_version >= FLEXIBLE_FROM[api_key] and api_key != ApiKey.API_VERSIONS


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    head = _RESPONSE_V1 if has_flexible_response_header(api_key, api_version) else _RESPONSE_V0
    return head.pack(correlation_id)


def read_response_header(api_key: int, api_version: int, buffer: Buffer, position: int = 0) -> tuple[int, int]:
    """Return the correlation id and the position of the body. Raise DecodeError if the header is malformed."""
    try:
        (correlation_id,) = _RESPONSE_V0.unpack_from(buffer, position)
        position += 4
        if has_flexible_response_header(api_key, api_version):
            position = skip_tags(buffer, position + 1, buffer[position])
        return correlation_id, position
    except _FAULTS as error:
        raise DecodeError(f"ResponseHeader: {error}") from error
