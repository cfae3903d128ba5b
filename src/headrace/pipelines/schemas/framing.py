"""The header of data that uses a registry: a zero byte, the schema id in four bytes, and for Protobuf the indexes of the message."""

from __future__ import annotations

from headrace.pipelines.schemas.columns import BadRecord

MAGIC = 0
HEADER_BYTES = 5
INDEXES_MAX = 64  # nested messages
VARINT_BYTES_MAX = 10


def schema_id(data: bytes) -> int:
    if len(data) < HEADER_BYTES:
        raise BadRecord(f"{len(data)} bytes are too few to name a schema of the registry")
    if data[0] != MAGIC:
        raise BadRecord(f"its first byte is {data[0]}, not {MAGIC}: it names no schema of the registry")
    return int.from_bytes(data[1:HEADER_BYTES], "big")


def message_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message's index path in the schema's file, and the offset at which the message begins."""
    count, at = _zigzag(data, HEADER_BYTES)
    if count == 0:
        return (0,), at
    if not 0 < count <= INDEXES_MAX:
        raise BadRecord(f"a list of {count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        if index < 0:
            raise BadRecord(f"message index {index}")
        indexes.append(index)
    return tuple(indexes), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + index + 1
    raise BadRecord("its list of message indexes is cut off")
