"""Reads and checks producer snapshots and indexes of a segment, for `dump-log`.

Indexes are also checked against the log of the segment, if it exists.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any

from headrace.base.errors import CorruptData
from headrace.cli.dump.batches import Line, read_batches
from headrace.records.batch import BatchHeader
from headrace.storage.indexes.aborted_index import ENTRY as ABORTED_ENTRY
from headrace.storage.indexes.aborted_index import ENTRY_VERSION
from headrace.storage.indexes.offset_index import OffsetIndex
from headrace.storage.indexes.time_index import TimeIndex
from headrace.storage.names import LOG_SUFFIX, offset_of
from headrace.storage.producer_snapshots import SNAPSHOT_BYTES_MAX, decode_snapshot

INDEX_BYTES_MAX = 2**31 - 1


def dump_index(path: Path) -> Iterator[Line]:
    """Yield entries and problems. Zeros at the end are preallocated space, not entries."""
    kind = path.suffix
    entry = {".index": OffsetIndex.ENTRY, ".timeindex": TimeIndex.ENTRY, ".txnindex": ABORTED_ENTRY}[kind]
    base = offset_of(path.name, kind)
    if base is None:
        raise CorruptData("the file name is not the first offset of a segment in twenty digits")
    rows = _rows(path, entry)
    check = {".index": _check_offset, ".timeindex": _check_time, ".txnindex": _check_aborted}[kind]
    log_path = path.with_suffix(LOG_SUFFIX)
    log = _Log(log_path) if rows and log_path.exists() else None
    last: tuple[int, ...] | None = None
    for number, row in enumerate(rows):
        yield Line("entry", _facts(kind, base, row))
        problem = _order(kind, last, row)
        if problem is None and log is not None:
            problem = check(base, row, log)
        if problem is not None:
            yield Line("problem", {"problem": f"entry {number}: {problem}"})
        last = row
    yield Line("summary", {"entries": len(rows), "checkedAgainst": log_path.name if log is not None else None})


def dump_snapshot(path: Path) -> Iterator[Line]:
    if path.stat().st_size > SNAPSHOT_BYTES_MAX:
        raise CorruptData(f"not a producer snapshot: larger than {SNAPSHOT_BYTES_MAX} bytes")
    entries = decode_snapshot(path.read_bytes())
    for entry in entries:
        facts: dict[str, Any] = {
            "producerId": entry.producer_id,
            "producerEpoch": entry.epoch,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": entry.transaction_first_offset if entry.transaction_first_offset >= 0 else None,
            "lastTimestamp": entry.last_timestamp,
        }
        if entry.batches:
            batch = entry.batches[-1]
            facts |= {
                "firstSequence": batch.first_sequence,
                "lastSequence": batch.last_sequence,
                "lastOffset": batch.last_offset,
                "offsetDelta": batch.last_offset - batch.first_offset,
                "timestamp": batch.timestamp,
            }
        yield Line("entry", facts)
    yield Line("summary", {"entries": len(entries)})


def _rows(path: Path, entry: Struct) -> list[tuple[int, ...]]:
    size = path.stat().st_size
    if size > INDEX_BYTES_MAX or size % entry.size:
        raise CorruptData(f"its size of {size} bytes is not a multiple of the {entry.size} bytes of an entry")
    raw = path.read_bytes().rstrip(b"\0")
    used = -(-len(raw) // entry.size) * entry.size
    return list(entry.iter_unpack(raw.ljust(used, b"\0")))


def _facts(kind: str, base: int, row: tuple[int, ...]) -> dict[str, Any]:
    if kind == ".index":
        return {"offset": base + row[0], "position": row[1]}
    if kind == ".timeindex":
        return {"timestamp": row[0], "offset": base + row[1]}
    names = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
    return dict(zip(names, row, strict=True))


def _order(kind: str, last: tuple[int, ...] | None, row: tuple[int, ...]) -> str | None:
    if kind == ".txnindex":
        version, _, first, end, _ = row
        if version != ENTRY_VERSION or not 0 <= first <= end:
            return f"invalid entry: version {version}, a transaction from {first} to {end}"
        return f"its marker at {end} does not follow the one at {last[3]}" if last and end <= last[3] else None
    if min(row) < 0:
        return f"{row} has a negative number"
    if last is not None and not (row[0] > last[0] and row[1] >= last[1]):
        return f"{row} does not follow {last}"
    return None


class _Log:
    """The batch headers of the log that an index belongs to, as far as they can be read.

    Problems of the log are reported when the log itself is dumped.
    """

    def __init__(self, path: Path) -> None:
        self.at: dict[int, BatchHeader] = {}  # headers by position
        with path.open("rb") as file, suppress(CorruptData):
            for position, header, _ in read_batches(file, path.stat().st_size, headers_only=True):
                self.at[position] = header
        self._headers = list(self.at.values())

    def with_offset(self, offset: int) -> BatchHeader | None:
        index = bisect_left(self._headers, offset, key=lambda header: header.last_offset)
        return self._headers[index] if index < len(self._headers) else None


def _check_offset(base: int, row: tuple[int, ...], log: _Log) -> str | None:
    header = log.at.get(row[1])
    if header is None:
        return f"no batch begins at position {row[1]} of the log"
    if header.last_offset != base + row[0]:
        return f"the batch at position {row[1]} ends with offset {header.last_offset}, not {base + row[0]}"
    return None


def _check_time(base: int, row: tuple[int, ...], log: _Log) -> str | None:
    header = log.with_offset(base + row[1])
    if header is None:
        return f"offset {base + row[1]} is not in the log"
    if header.max_timestamp != row[0]:
        return f"the batch with offset {base + row[1]} has timestamp {header.max_timestamp}, not {row[0]}"
    return None


def _check_aborted(base: int, row: tuple[int, ...], log: _Log) -> str | None:
    header = log.with_offset(row[3])
    if header is None or not header.is_control or (header.last_offset, header.producer_id) != (row[3], row[1]):
        return f"the log has no marker of producer {row[1]} at offset {row[3]}"
    return None
