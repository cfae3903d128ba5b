"""The zigzag varints of records: at most 5 bytes for 32 bits and 10 bytes for 64 bits.

Longer ones, and those whose last byte has bits beyond the width, are refused, because readers disagree on their meaning.
"""

from __future__ import annotations

from headrace.records.batch import Buffer, CorruptBatch

VARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_VARINT_LAST_BYTE_MAX = 0x0F  # 32 bits = 4 * 7 + 4
_VARLONG_LAST_BYTE_MAX = 0x01  # 64 bits = 9 * 7 + 1

# Nearly all varints have one byte: values -64 to 63, at index value + 64.
_ONE_BYTE = [bytes([2 * value if value >= 0 else -2 * value - 1]) for value in range(-64, 64)]


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return the 32-bit value at `position`, and the position after it. Raise CorruptBatch if it is malformed."""
    return _read(buffer, position, VARINT_BYTES_MAX, _VARINT_LAST_BYTE_MAX)


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    return _read(buffer, position, VARLONG_BYTES_MAX, _VARLONG_LAST_BYTE_MAX)


def _read(buffer: Buffer, position: int, bytes_max: int, last_byte_max: int) -> tuple[int, int]:
    value = 0
    shift = 0
    try:
        byte = buffer[position]
        position += 1
        while byte & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            byte = buffer[position]
            position += 1
            if shift == 7 * (bytes_max - 1) and byte > last_byte_max:
                raise CorruptBatch(f"varint is wider than {bytes_max} bytes can be")
    except IndexError:
        raise CorruptBatch("varint reaches beyond the end") from None
    value |= byte << shift
    return (value >> 1) ^ -(value & 1), position


def varint(value: int) -> bytes:
    if -64 <= value < 64:
        return _ONE_BYTE[value + 64]
    if not _INT32_MIN <= value <= _INT32_MAX:
        raise ValueError(f"{value} does not fit into 32 bits")
    return _many_bytes(value)


def varlong(value: int) -> bytes:
    if -64 <= value < 64:
        return _ONE_BYTE[value + 64]
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError(f"{value} does not fit into 64 bits")
    return _many_bytes(value)


def _many_bytes(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
