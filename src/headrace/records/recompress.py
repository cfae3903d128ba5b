"""Recompression of a batch with another codec: the records stay identical; codec, length and checksum change."""

from __future__ import annotations

from headrace.records.batch import (
    CODEC_MASK,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    BatchHeader,
    Buffer,
    checksum,
    pack_header,
)
from headrace.records.compression import Codec, compress

# The values of compression.type; None keeps the producer's codec.
TARGETS: dict[str, Codec | None] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
GZIP_DEFAULT_LEVEL = -1


def recompress(header: BatchHeader, records: Buffer, codec: Codec, level: int | None) -> tuple[memoryview, BatchHeader]:
    """Compress the decompressed `records` of the batch with this header; return the new batch and its header."""
    if level == GZIP_DEFAULT_LEVEL and codec == Codec.GZIP:
        level = None
    section = compress(codec, records, level)
    header = header._replace(
        batch_length=HEADER_BYTES - LENGTH_OVERHEAD_BYTES + len(section),
        attributes=header.attributes & ~CODEC_MASK | codec,
    )
    batch = bytearray(pack_header(header))
    batch += section
    header = header._replace(crc=checksum(batch, 0, len(batch)))
    batch[:CRC_START] = pack_header(header)[:CRC_START]
    return memoryview(batch), header
