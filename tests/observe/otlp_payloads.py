"""OTLP metrics in protobuf: a payload written by OpenTelemetry's Java classes, and an encoder for small ones."""

from __future__ import annotations

import base64
import struct
from typing import Any

# Written by Kafka's shaded OpenTelemetry classes: all kinds of metrics and attributes, two resources, schema URLs, times, flags.
WRITTEN_BY_JAVA = base64.b64decode(
    "CrsEChcKEwoLY2xpZW50X3JhY2sSBAoCcjEQARKcBAoGCgFzEgExErsBCghnLmRvdWJsZRIBZBoCbXMqpwEKhwERAQAAAAAAAAAZAgAAAAAAAAAhAAAA"
    "AAAA+D86EQoFdG9waWMSCAoGb3JkZXJzOhgKCXBhcnRpdGlvbhILGPn//////////wE6DAoGbGVhZGVyEgIQAToSCgVzaGFyZRIJIQAAAAAAANA/Og8K"
    "BGxpc3QSByoFCgMKAXg6CgoDcmF3EgM6AXkKGxEBAAAAAAAAABkCAAAAAAAAACEAAAAAAAD4fxImCgVnLmludCodChsRAQAAAAAAAAAZAgAAAAAAAAAx"
    "/f////////8SPwoHcy5kZWx0YTo0Ci4RAQAAAAAAAAAZAgAAAAAAAAAxAAAAAAABAAA6EQoFdG9waWMSCAoGb3JkZXJzEAEYARJOCgxzLmN1bXVsYXRp"
    "dmU6PgobEQEAAAAAAAAAGQIAAAAAAAAAIQAAAAAAACJACh0RAQAAAAAAAAAZAgAAAAAAAAAhAAAAAAAAIEBAARACEmwKAWhKZwpjIQYAAAAAAAAAKQAA"
    "AAAAAClAMhgBAAAAAAAAAAIAAAAAAAAAAwAAAAAAAAA6EAAAAAAAAPA/AAAAAAAAFEBKEQoFdG9waWMSCAoGb3JkZXJzWQAAAAAAAAAAYQAAAAAAACJA"
    "EAESEAoBZVILCgkhAQAAAAAAAAASEAoBcVoLCgkhAQAAAAAAAAASBgoEbm9uZRoBdRoBdQorEikSJwoGc2Vjb25kKh0KGxEBAAAAAAAAABkCAAAAAAAA"
    "ADEBAAAAAAAAAA=="
)

GAUGE, SUM, HISTOGRAM = 5, 7, 9


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number: int, value: bytes | float | str) -> bytes:
    """Encode an integer as a varint, a float as a double, and bytes or text with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def attribute(key: str, value: str) -> bytes:
    return field(1, key) + field(2, field(1, value))


def number(value: int, **attributes: Any) -> bytes:
    return field(4, float(value)) + b"".join(field(7, attribute(*one)) for one in attributes.items())


def metric(name: str, *points: bytes, kind: int = GAUGE, delta: bool = False, monotonic: bool = False) -> bytes:
    body = b"".join(field(1, point) for point in points)
    if kind != GAUGE:
        body += field(2, 1 if delta else 2)
    if monotonic:
        body += field(3, 1)
    return field(1, name) + field(kind, body)


def payload(*metrics: bytes) -> bytes:
    return field(1, field(2, b"".join(field(2, one) for one in metrics)))
