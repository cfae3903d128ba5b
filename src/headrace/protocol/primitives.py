"""Functions that compiled codecs call for what they do not inline: long varints, nulls, tags, arrays of numbers.

Readers raise ValueError, IndexError or struct.error; the codec that calls them converts these to DecodeError.
A slice past the end is cut silently but leaves the position past the end, where the next read or the codec's last check fails.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from headrace.protocol.types import Buffer

UVARINT_BYTES_MAX = 5
STRING_BYTES_MAX = 32767
FEW = 32  # largest array of numbers with a precompiled struct format

UVARINT_OF_ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    value = buffer[position]
    if value < 128:
        return value, position + 1
    byte = buffer[position + 1]
    value += (byte - 1) << 7  # the - 1 subtracts the continuation bit of the previous byte
    if byte < 128:
        return value, position + 2
    byte = buffer[position + 2]
    value += (byte - 1) << 14
    if byte < 128:
        return value, position + 3
    byte = buffer[position + 3]
    value += (byte - 1) << 21
    if byte < 128:
        return value, position + 4
    byte = buffer[position + 4]
    if byte > 15:
        raise ValueError(f"varint at {position} exceeds 32 bits")
    return value + ((byte - 1) << 28), position + UVARINT_BYTES_MAX


def uvarint(value: int) -> bytes:
    if value < 128:
        return UVARINT_OF_ONE_BYTE[value]
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string_uvarint(value: int) -> bytes:
    """Return the length prefix of a compact string, which Kafka limits as if it were still an int16."""
    if value > STRING_BYTES_MAX + 1:
        raise ValueError(f"a string of {value - 1} bytes is longer than {STRING_BYTES_MAX}")
    return uvarint(value)


def _compact_end(buffer: Buffer, position: int) -> tuple[int, int]:
    length, start = read_uvarint(buffer, position)
    return start, start + length - 1


def read_compact_string(buffer: Buffer, position: int) -> tuple[str, int]:
    start, end = _compact_end(buffer, position)
    if end < start:
        raise null_refused(position)
    if end - start > STRING_BYTES_MAX:
        raise ValueError(f"string at {position} is longer than {STRING_BYTES_MAX} bytes")
    return str(buffer[start:end], "utf-8"), end


def read_compact_bytes(buffer: Buffer, position: int) -> tuple[bytes, int]:
    start, end = _compact_end(buffer, position)
    if end < start:
        raise null_refused(position)
    return bytes(buffer[start:end]), end


def null_refused(position: int) -> ValueError:
    return ValueError(f"null or a negative length before position {position}, where neither is allowed")


def count_refused(count: int, left: int) -> ValueError:
    return ValueError(f"an array of {count} elements cannot fit in the {left} bytes left")


def read_tag(buffer: Buffer, position: int, previous: int) -> tuple[int, int, int]:
    """Return the tag, and the start and end of its value. Raise ValueError if tags are not in ascending order."""
    tag, position = read_uvarint(buffer, position)
    if tag <= previous:
        raise ValueError(f"tag {tag} comes after tag {previous}")
    width, position = read_uvarint(buffer, position)
    if position + width > len(buffer):
        raise ValueError(f"tag {tag} claims {width} bytes, {len(buffer) - position} are left")
    return tag, position, position + width


def skip_tags(buffer: Buffer, position: int, count: int) -> int:
    """Skip a tag section whose count begins with the byte `count`, just before `position`; return its end."""
    if count > 127:
        count, position = read_uvarint(buffer, position - 1)
    tag = -1
    for _ in range(count):
        tag, _, position = read_tag(buffer, position, tag)
    return position


def tag_width_refused(tag: int, position: int, end: int) -> ValueError:
    return ValueError(f"tag {tag} should end at {end} and ends at {position}")


def number_reader(code: str) -> Callable[[int, Buffer, int], list[object]]:
    few = tuple(struct.Struct(f">{count}{code}").unpack_from for count in range(FEW + 1))

    def read(count: int, buffer: Buffer, position: int) -> list[object]:
        if count <= FEW:
            return list(few[count](buffer, position))
        return list(struct.unpack_from(f">{count}{code}", buffer, position))

    return read


def number_writer(code: str) -> Callable[[Sequence[object]], bytes]:
    few = tuple(struct.Struct(f">{count}{code}").pack for count in range(FEW + 1))

    def write(values: Sequence[object]) -> bytes:
        count = len(values)
        return few[count](*values) if count <= FEW else struct.pack(f">{count}{code}", *values)

    return write


def read_uuids(count: int, buffer: Buffer, position: int) -> list[bytes]:
    return [bytes(buffer[start : start + 16]) for start in range(position, position + 16 * count, 16)]


def write_uuids(values: Sequence[bytes]) -> bytes:
    for value in values:
        check_uuid(value)
    return b"".join(values)


def check_uuid(value: bytes) -> bytes:
    # struct would silently pad or truncate it
    if len(value) != 16:
        raise ValueError(f"a UUID of {len(value)} bytes")
    return value


FOR_GENERATED_CODE = {name: value for name, value in globals().items() if not name.startswith("_")}
