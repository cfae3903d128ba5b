"""`headrace dump-log`: what stands in the files of a data directory, and whether it can be right. Exit code 1 if anything is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

from headrace.base.errors import CorruptData
from headrace.metadata.records import decode_record
from headrace.records.batch import MAGIC, BatchHeader, CorruptBatch, peek_size_and_magic
from headrace.records.control import parse_control_batch
from headrace.records.legacy import check_any_crc, decode_any_records, read_any_header
from headrace.storage.producer_snapshots import decode_snapshot

READ_BYTES = 8 << 20
_PEEK_BYTES = 17  # enough to know size and format
_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_ABORTED_ENTRY = Struct(">hqqqq")


def run(files: list[Path], *, deep: bool, data: bool, metadata: bool) -> None:
    wrong = 0
    for path in files:
        print(f"Dumping {path}")
        try:
            if path.suffix in (".log", ".checkpoint"):
                lines = _batches(path, deep, data, metadata)
            elif path.suffix == ".snapshot":
                lines = _snapshot(path)
            elif path.suffix in (".index", ".timeindex", ".txnindex"):
                lines = _index(path)
            else:
                raise CorruptData(
                    "not a file of a log: expected .log .index .timeindex .txnindex .snapshot .checkpoint"
                )
            for line in lines:
                print(line)
        except (CorruptData, OSError) as error:
            wrong += 1
            print(f"WRONG {path}: {error}")
    if wrong:
        sys.exit(1)


def read_batches(path: Path) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Positions, headers and bytes of all batches, and of messages of the formats before them; CorruptData at the first that is none."""
    with path.open("rb") as file:
        position, rest = 0, b""
        while more := file.read(READ_BYTES):
            rest += more
            start = 0
            while len(rest) - start >= _PEEK_BYTES:
                if peek_size_and_magic(rest, start)[0] > len(rest) - start:
                    break
                header = read_any_header(rest, start)
                check_any_crc(rest, start, header)
                yield position, header, rest[start : start + header.size]
                start += header.size
                position += header.size
            rest = rest[start:]
    if rest:
        raise CorruptBatch(f"{len(rest)} bytes at position {position} are no whole batch")


def _batches(path: Path, deep: bool, data: bool, metadata: bool) -> Iterator[str]:
    expected = -1
    for position, header, batch in read_batches(path):
        first, count = header.base_offset, header.record_count
        if header.magic < MAGIC:  # a wrapper says neither where it begins nor how many it holds
            inner = list(decode_any_records(batch))
            first, count = inner[0].offset, len(inner)
        yield (
            f"baseOffset: {first} lastOffset: {header.last_offset} count: {count} "
            f"baseSequence: {header.base_sequence} producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
            f"partitionLeaderEpoch: {header.leader_epoch} isTransactional: {header.is_transactional} "
            f"isControl: {header.is_control} position: {position} maxTimestamp: {header.max_timestamp} size: {header.size} "
            f"magic: {header.magic} codec: {header.codec} crc: {header.crc}"
        )
        if first < expected:
            raise CorruptBatch(
                f"batch at {position} begins at offset {first}, the one before it ended at {expected - 1}"
            )
        expected = header.next_offset
        if deep:
            yield from _records(header, batch, data, metadata)


def _records(header: BatchHeader, batch: bytes, data: bool, metadata: bool) -> Iterator[str]:
    if header.is_control:
        for control in parse_control_batch(batch):
            yield f"| offset: {control.offset} control type: {control.type} value: {control.value.hex()}"
        return
    for record in decode_any_records(batch):
        line = f"| offset: {record.offset} timestamp: {record.timestamp}"
        line += f" keySize: {-1 if record.key is None else len(record.key)}"
        line += f" valueSize: {-1 if record.value is None else len(record.value)}"
        if record.headers:
            line += f" headers: {[name for name, _ in record.headers]}"
        if metadata:
            line += f" {decode_record(record.value or b'')!r}"
        elif data:
            line += f" key: {_shown(record.key)} value: {_shown(record.value)}"
        yield line


def _shown(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def _index(path: Path) -> Iterator[str]:
    """Entries must ascend; zeros at the end are the room that a broker had set aside when it died."""
    raw, base = path.read_bytes(), int(path.stem)
    entry = {".index": _OFFSET_ENTRY, ".timeindex": _TIME_ENTRY, ".txnindex": _ABORTED_ENTRY}[path.suffix]
    if len(raw) % entry.size:
        raise CorruptData(f"{len(raw)} bytes are no multiple of the {entry.size} of an entry")
    last: tuple[int, ...] = ()
    for at in range(0, len(raw), entry.size):
        found = entry.unpack_from(raw, at)
        if at and not any(found):
            return
        if path.suffix == ".txnindex":
            yield "version: {} producerId: {} firstOffset: {} lastOffset: {} lastStableOffset: {}".format(*found)
            continue
        if last and found <= last:
            raise CorruptData(f"entry {at // entry.size} {found} does not follow {last}")
        last = found
        if path.suffix == ".index":
            yield f"offset: {base + found[0]} position: {found[1]}"
        else:
            yield f"timestamp: {found[0]} offset: {base + found[1]}"


def _snapshot(path: Path) -> Iterator[str]:
    for entry in decode_snapshot(path.read_bytes()):
        yield (
            f"producerId: {entry.producer_id} producerEpoch: {entry.epoch} lastSequence: {entry.last_sequence} "
            f"lastOffset: {entry.last_offset} lastTimestamp: {entry.last_timestamp} "
            f"coordinatorEpoch: {entry.coordinator_epoch} currentTxnFirstOffset: {entry.transaction_first_offset}"
        )
