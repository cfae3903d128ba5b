"""The five codecs of a record batch. Output buffers are bounded: a decompression bomb costs at most `limit` bytes.

Kafka's framings are one gzip stream; xerial blocks of raw snappy; an LZ4 frame of independent 64 KiB blocks without sizes or
checksums; zstd frames.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from struct import error as StructError

import cramjam

from headrace.records.batch import Buffer, CorruptBatch
from headrace.records.kernel import allocate


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


Allocate = Callable[[int], bytearray | memoryview]


class TooLarge(CorruptBatch):
    """Compressed bytes that decompress to more than the caller allows."""


LEVELS = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}
LEVEL_DEFAULTS = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}

_FIRST_GUESS_RATIO = 8
_FIRST_GUESS_BYTES_MIN = 4096
_GROWTH = 16  # unwritten pages cost nothing, another attempt does
_BUFFER_FULL = "failed to write whole buffer"  # cramjam's message if the output buffer is too small

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_MAGIC_AS_LENGTH = int.from_bytes(_XERIAL_MAGIC[:4], "big")
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_SNAPPY_RATIO_MAX = 32  # a copy element of 3 bytes yields 64: no memory is allocated for declared lengths beyond this
_BIG_ENDIAN_LENGTH = Struct(">I")

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_FRAME_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"  # version 1, independent blocks of 64 KiB, header checksum
_LZ4_VERSION_AND_INDEPENDENCE = 0xE0
_LZ4_HAS_BLOCK_CHECKSUMS = 0x10
_LZ4_HAS_CONTENT_SIZE = 0x08
_LZ4_HAS_CONTENT_CHECKSUM = 0x04
_LZ4_HAS_DICTIONARY = 0x01
_LZ4_BLOCK_CHECKSUM_BYTES = 4
_LZ4_STORED = 0x80000000
_LZ4_FASTEST = 1
_LITTLE_ENDIAN_LENGTH = Struct("<I")


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress with Kafka's framing; raise ValueError for a level that the codec does not support."""
    if level is not None and codec in LEVELS:
        lowest, highest = LEVELS[codec]
        if not lowest <= level <= highest:
            raise ValueError(f"{codec.name.lower()} has levels {lowest} to {highest}, not {level}")
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.SNAPPY:
        return _compress_snappy(memoryview(data))
    if level is None:
        level = LEVEL_DEFAULTS[codec]
    if codec == Codec.LZ4:
        return _compress_lz4(data, level)
    library = cramjam.gzip if codec == Codec.GZIP else cramjam.zstd
    return bytes(library.compress(data, level=level))


def decompress(codec: int, data: Buffer, limit: int, allocate_buffer: Allocate = allocate) -> Buffer:
    """Decompress into memory that `allocate_buffer` returns.

    Raise TooLarge if the output exceeds `limit` bytes, and CorruptBatch if the data is not valid for the codec.
    """
    if codec == Codec.NONE:
        if len(data) > limit:
            raise TooLarge(f"{len(data)} bytes of records exceed the limit of {limit}")
        return data
    if codec == Codec.SNAPPY:
        return _decompress_snappy(memoryview(data), limit, allocate_buffer)
    if codec == Codec.GZIP:
        return _decompress_growing(cramjam.gzip.decompress_into, data, limit, allocate_buffer)
    if codec == Codec.ZSTD:
        return _decompress_growing(cramjam.zstd.decompress_into, data, limit, allocate_buffer)
    if codec == Codec.LZ4:
        _check_lz4_frame(data)
        return _decompress_growing(cramjam.lz4.decompress_into, data, limit, allocate_buffer)
    raise CorruptBatch(f"unknown codec {codec}")


def _decompress_growing(
    decompress_into: Callable[[Buffer, bytearray | memoryview], int],
    data: Buffer,
    limit: int,
    allocate_buffer: Allocate,
) -> Buffer:
    """Decompress into ever larger buffers, for formats that do not declare a trustworthy length."""
    size = min(limit, max(_FIRST_GUESS_BYTES_MIN, _FIRST_GUESS_RATIO * len(data)))
    while True:
        out = allocate_buffer(size)
        try:
            length = decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if _BUFFER_FULL not in str(error):
                raise CorruptBatch(f"compressed records cannot be read: {error}") from None
        else:
            if isinstance(out, memoryview):
                return out[:length]
            del out[length:]
            return out
        if size >= limit:
            raise TooLarge(f"compressed records expand to more than the limit of {limit} bytes")
        size = min(limit, size * _GROWTH)


def _compress_snappy(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BIG_ENDIAN_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit: int, allocate_buffer: Allocate) -> Buffer:
    blocks = [data] if data[:8] != _XERIAL_MAGIC else _xerial_blocks(data)
    sizes = [_snappy_length(block) for block in blocks]
    total = sum(sizes)
    if total > limit:
        raise TooLarge(f"compressed records expand to {total} bytes, the limit is {limit}")
    out = allocate_buffer(total)
    view = memoryview(out)
    position = 0
    try:
        for block, size in zip(blocks, sizes, strict=True):
            if size and cramjam.snappy.decompress_raw_into(block, view[position : position + size]) != size:
                raise CorruptBatch("a snappy block is shorter than its declared length")
            position += size
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"compressed records cannot be read: {error}") from None
    return out


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks = []
    position = len(_XERIAL_HEADER)
    try:
        while position < len(data):
            (length,) = _BIG_ENDIAN_LENGTH.unpack_from(data, position)
            if length == _XERIAL_MAGIC_AS_LENGTH:  # another stream begins here
                position += len(_XERIAL_HEADER)
                continue
            position += 4
            if length > len(data) - position:
                raise CorruptBatch("a snappy block reaches beyond the end")
            blocks.append(data[position : position + length])
            position += length
    except StructError:
        raise CorruptBatch("snappy blocks end in the middle of a length") from None
    if position != len(data):
        raise CorruptBatch("the snappy header is cut off")
    return blocks


def _snappy_length(block: memoryview) -> int:
    """Return the declared length of the block, an unsigned 32-bit varint at its start."""
    length = 0
    for index, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            if length > _SNAPPY_RATIO_MAX * len(block):
                raise CorruptBatch(f"a snappy block of {len(block)} bytes cannot expand to {length}")
            return length
    raise CorruptBatch("a snappy block has no valid length")


def _compress_lz4(data: Buffer, level: int) -> bytes:
    """Compress with cramjam and strip its block checksums: Kafka writes none, and some readers do not support them."""
    # As in Kafka, the default level 9 selects the fast compressor, every other level the high-compression one.
    stream = cramjam.lz4.Compressor(
        level=_LZ4_FASTEST if level == LEVEL_DEFAULTS[Codec.LZ4] else level, content_checksum=False, block_linked=False
    )
    stream.compress(bytes(data))  # cramjam accepts only bytes here
    frame = memoryview(stream.finish())
    parts: list[bytes | memoryview] = [_LZ4_FRAME_HEADER]
    position = len(_LZ4_FRAME_HEADER)
    while True:
        (length,) = _LITTLE_ENDIAN_LENGTH.unpack_from(frame, position)
        end = position + 4 + (length & ~_LZ4_STORED)
        parts.append(frame[position:end])
        if length == 0:
            return b"".join(parts)
        position = end + _LZ4_BLOCK_CHECKSUM_BYTES


def _check_lz4_frame(data: Buffer) -> None:
    """Raise CorruptBatch unless the data is one frame of independent blocks; Kafka's reader accepts nothing else."""
    if len(data) < len(_LZ4_FRAME_HEADER) or data[:4] != _LZ4_MAGIC:
        raise CorruptBatch("compressed records are not an LZ4 frame")
    flags = data[4]
    if flags & _LZ4_VERSION_AND_INDEPENDENCE != _LZ4_FRAME_HEADER[4]:
        raise CorruptBatch("the LZ4 frame has linked blocks or an unknown version")
    checksum_bytes = _LZ4_BLOCK_CHECKSUM_BYTES if flags & _LZ4_HAS_BLOCK_CHECKSUMS else 0
    position = len(_LZ4_FRAME_HEADER)
    position += 8 if flags & _LZ4_HAS_CONTENT_SIZE else 0
    position += 4 if flags & _LZ4_HAS_DICTIONARY else 0
    try:
        while True:
            (length,) = _LITTLE_ENDIAN_LENGTH.unpack_from(data, position)
            position += 4
            if length == 0:
                break
            position += (length & ~_LZ4_STORED) + checksum_bytes
    except StructError:
        raise CorruptBatch("the LZ4 frame is cut off") from None
    if position + (4 if flags & _LZ4_HAS_CONTENT_CHECKSUM else 0) != len(data):
        raise CorruptBatch("the LZ4 frame is cut off, or bytes follow it")
