"""Reads and checks batches and records of any format in .log and .checkpoint files, for `dump-log`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from headrace.base.errors import CorruptData
from headrace.cli.dump.values import Decoder, of_control
from headrace.cli.output import Progress
from headrace.records.batch import (
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    BatchHeader,
    CorruptBatch,
    advance_sequence,
    peek_size_and_magic,
)
from headrace.records.compression import Codec
from headrace.records.control import parse_control_batch
from headrace.records.legacy import check_any_crc, decode_any_records, read_any_header
from headrace.records.record import Record, decode_records

BATCH_BYTES_MAX = 1 << 30  # more than a broker ever accepts
_PEEK_BYTES = 17  # enough to read size and format
NO_SEQUENCE = -1


class Line(NamedTuple):
    """One line of output. `kind` is batch, record, entry, problem or summary."""

    kind: str
    facts: dict[str, Any]


def read_batches(file: BinaryIO, size: int, *, headers_only: bool = False) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Yield position, header and bytes of each batch, without verifying checksums.

    Raise CorruptBatch at a batch that is not complete.
    """
    position = 0
    while position < size:
        file.seek(position)
        head = file.read(HEADER_BYTES)
        left = size - position
        if len(head) < _PEEK_BYTES:
            raise CorruptBatch(f"{left} bytes at position {position} are not a complete batch")
        length, magic = peek_size_and_magic(head, 0)
        if not LENGTH_OVERHEAD_BYTES < length <= min(left, BATCH_BYTES_MAX):
            raise CorruptBatch(
                f"{left} bytes at position {position} are not a complete batch: its header gives a size of {length}"
            )
        rest = 0 if headers_only and magic == MAGIC else length - len(head)
        data = head[:length] + file.read(max(0, rest))
        yield position, read_any_header(data), data
        position += length


def dump_batches(
    path: Path, deep: bool, decode: Decoder | None, max_bytes: int | None, progress: Progress
) -> Iterator[Line]:
    """Yield everything that can be read, each problem where it was found, and finally a summary."""
    batches = records = 0
    first: int | None = None
    expected = -1
    with path.open("rb") as file:
        size = path.stat().st_size
        stream = read_batches(file, size)
        while True:
            try:
                position, header, data = next(stream)
            except StopIteration:
                break
            except CorruptData as error:
                yield Line("problem", {"problem": str(error)})
                break
            if max_bytes is not None and position + header.size > max_bytes:
                break
            progress.advance(header.size)
            facts, found = _describe(position, header, data)
            yield Line("batch", facts)
            base, last = facts.get("baseOffset", facts.get("offset", 0)), header.last_offset
            if base < expected:
                found.append(
                    f"batch at {position} begins at offset {base}, but the previous one ended at {expected - 1}"
                )
            expected = last + 1
            first = base if first is None else first
            batches, records = batches + 1, records + facts.get("count", 1)
            if deep and facts["isvalid"]:
                yield from _records(header, data, decode, found)
            for problem in found:
                yield Line("problem", {"problem": problem})
    summary = {
        "batches": batches,
        "records": records,
        "firstOffset": first,
        "lastOffset": expected - 1 if batches else None,
    }
    yield Line("summary", summary)


def _describe(position: int, header: BatchHeader, data: bytes) -> tuple[dict[str, Any], list[str]]:
    problems: list[str] = []
    facts: dict[str, Any] = {}
    try:
        check_any_crc(data, 0, header)
        valid = True
    except CorruptData as error:
        problems.append(f"batch at {position}: {error}")
        valid = False
    if header.magic < MAGIC:
        facts["offset"] = header.last_offset
    else:
        facts = {
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "count": header.record_count,
            "baseSequence": header.base_sequence,
            "lastSequence": header.last_sequence,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.leader_epoch,
            "isTransactional": header.is_transactional,
            "isControl": header.is_control,
            "deleteHorizonMs": header.base_timestamp if header.attributes & DELETE_HORIZON else None,
        }
    facts |= {
        "position": position,
        _time_name(header): header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compresscodec": _codec_name(header.codec),
        "crc": header.crc,
        "isvalid": valid,
    }
    return facts, problems


def _records(header: BatchHeader, data: bytes, decode: Decoder | None, problems: list[str]) -> Iterator[Line]:
    try:
        if header.is_control:
            controls = {control.offset: control for control in parse_control_batch(data)}
            for record in decode_records(data):
                yield Line("record", {**_record(header, record), **of_control(controls[record.offset])})
            return
        count = 0
        for record in decode_any_records(data):
            count += 1
            if not header.base_offset <= record.offset <= header.last_offset and header.magic == MAGIC:
                problems.append(f"offset {record.offset} does not belong to the batch at {header.base_offset}")
            yield Line("record", {**_record(header, record), **(decode(record) if decode is not None else {})})
        if header.magic == MAGIC and count != header.record_count:
            problems.append(
                f"batch at {header.base_offset} has {count} records, but its header gives {header.record_count}"
            )
    except CorruptData as error:
        problems.append(str(error))


def _record(header: BatchHeader, record: Record) -> dict[str, Any]:
    sequence = NO_SEQUENCE
    if header.base_sequence != NO_SEQUENCE:
        sequence = advance_sequence(header.base_sequence, record.offset - header.base_offset)
    facts: dict[str, Any] = {
        "offset": record.offset,
        _time_name(header): record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
    }
    if header.magic == MAGIC:
        facts |= {"sequence": sequence, "headerKeys": [name for name, _ in record.headers]}
    return facts


def _time_name(header: BatchHeader) -> str:
    if header.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if header.attributes & LOG_APPEND_TIME else "CreateTime"


def _codec_name(code: int) -> str:
    return Codec(code).name.lower() if code in tuple(Codec) else str(code)
