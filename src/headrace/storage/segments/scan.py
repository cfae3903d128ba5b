"""Scanning a `.log` file batch by batch, either headers only or whole batches with a check of their checksums.

Messages of old formats count as batches.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.records.batch import HEADER_BYTES, MAGIC, BatchHeader, CorruptBatch, check_crc, read_header
from headrace.records.legacy import check_any_crc, read_any_header
from headrace.storage.files import File

HEADER_SCAN_BYTES = 8 * 1024  # two index intervals: one read finds the batch in a log of small batches
BATCH_SCAN_BYTES = 1024 * 1024


def _header(buffer: bytes, at: int) -> BatchHeader:
    try:
        return read_header(buffer, at)
    except CorruptBatch:  # an older format or no batch at all: rare, so only these cases pay for the second attempt
        return read_any_header(buffer, at)


def scan_headers(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield positions and headers of the batches from `position`, where a batch must begin, to `end`.

    Raise CorruptBatch where there is no whole batch.
    """
    buffer, start = b"", position
    while position < end:
        at = position - start
        if at + HEADER_BYTES > len(buffer):
            start, at = position, 0
            buffer = file.read(position, min(HEADER_SCAN_BYTES, end - position))
        header = _header(buffer, at)
        if position + header.size > end:
            raise CorruptBatch(f"batch of {header.size} bytes at {position} reaches beyond {end}")
        yield position, header
        position += header.size


def scan_batches(file: File, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield the position, header and bytes of all batches up to `end`.

    Raise CorruptBatch where the structure or the checksum is wrong.
    """
    position = start = 0
    buffer = b""
    while position < end:
        at = position - start
        if at + HEADER_BYTES > len(buffer):
            buffer, start, at = file.read(position, min(BATCH_SCAN_BYTES, end - position)), position, 0
        header = _header(buffer, at)
        if position + header.size > end:
            raise CorruptBatch(f"batch of {header.size} bytes at {position} reaches beyond {end}")
        if at + header.size > len(buffer):
            buffer, start, at = (
                file.read(position, max(header.size, min(BATCH_SCAN_BYTES, end - position))),
                position,
                0,
            )
            if len(buffer) < header.size:
                raise CorruptBatch(f"batch of {header.size} bytes at {position}: only {len(buffer)} can be read")
        (check_crc if header.magic == MAGIC else check_any_crc)(buffer, at, header)
        yield position, header, memoryview(buffer)[at : at + header.size]
        position += header.size
