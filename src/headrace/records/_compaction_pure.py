"""The offset map and the sifting of batches by it: pure-Python fallback for _compaction.pyx and its test oracle."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from headrace.records._kernel_pure import Span, read_fields
from headrace.records.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    CorruptBatch,
    pack_header,
    peek_size_and_magic,
    unpack_header,
)
from headrace.records.kernel_types import COPY, FULL, MALFORMED, NOTHING, OK, OTHER, REBUILT, SiftedRun
from headrace.records.varint import read_varint, read_varlong, varint, varlong

RUNS_MAX = 1024
SECRET_BYTES = 16
_UINT64 = 2**64 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_PEEK_BYTES = 17
_NOT_PLAIN_TO_NOTE = CODEC_MASK | TRANSACTIONAL | CONTROL
_NOT_PLAIN_TO_SIFT = _NOT_PLAIN_TO_NOTE | DELETE_HORIZON
_TWO_WORDS = struct.Struct("<QQ")

Fields = tuple[int, int, Span, Span, int, int]  # timestamp delta, offset delta, key, value, start, end


class OffsetMap:
    """The last offset of every key, by the key's hash. The table is a dict with the bounds of the compiled one."""

    def __init__(self, slots: int, entries_max: int, secret: bytes) -> None:
        if not 0 < entries_max < slots or len(secret) != SECRET_BYTES:
            raise ValueError("an offset map needs an empty slot and a secret of 16 bytes")
        self.slots = slots
        self.entries_max = entries_max
        self.latest = -1
        self._secret: tuple[int, int] = _TWO_WORDS.unpack(secret)
        self._table: dict[tuple[int, int], int] = {}

    @property
    def entries(self) -> int:
        return len(self._table)

    def put(self, key: Buffer, offset: int) -> bool:
        """Set the last offset of a key; return False if the key is new and the map is full."""
        hashed = hash_key(key, *self._secret)
        if hashed not in self._table and len(self._table) >= self.entries_max:
            return False
        self._table[hashed] = self.latest = offset
        return True

    def get(self, key: Buffer) -> int:
        """Return the last offset of the key, or -1 if the map does not contain it."""
        return self._table.get(hash_key(key, *self._secret), -1)

    def note_records(self, records: Buffer, count: int, base_offset: int, last_delta: int, start: int) -> int:
        section = memoryview(records).cast("B")
        try:
            for _, offset_delta, key, _, _, _ in _walk(section, count, last_delta):
                offset = base_offset + offset_delta
                if key is not None and offset >= start and not self.put(section[key[0] : key[1]], offset):
                    return FULL
        except CorruptBatch:
            return MALFORMED
        return OK

    def note_plain(self, buffer: Buffer, position: int, start: int) -> tuple[int, int, int]:
        records = 0
        while True:
            status, header = _read_head(buffer, position, _NOT_PLAIN_TO_NOTE)
            if header is None:
                return position, records, OK if status == FULL else status
            section = memoryview(buffer)[position + HEADER_BYTES : position + header.size]
            status = self.note_records(
                section, header.record_count, header.base_offset, header.last_offset_delta, start
            )
            if status != OK:
                return position, records, status
            records += header.record_count
            position += header.size
            if header.last_offset >= start:
                self.latest = header.last_offset

    def sift_records(
        self,
        records: Buffer,
        count: int,
        base_offset: int,
        last_delta: int,
        base_timestamp: int,
        new_base_timestamp: int,
        drop_tombstones: bool,
        keep_all: bool,
    ) -> tuple[int, int, int, int, bytearray | None]:
        section = memoryview(records).cast("B")
        moved = new_base_timestamp != base_timestamp
        kept = tombstones = 0
        max_timestamp = NO_TIMESTAMP
        out = bytearray()
        try:
            for timestamp_delta, offset_delta, key, value, start, end in _walk(section, count, last_delta):
                offset = base_offset + offset_delta
                if not keep_all and not self._keeps(section, offset, key, value, drop_tombstones):
                    continue
                tombstones += value is None
                timestamp = base_timestamp + timestamp_delta
                delta = timestamp - new_base_timestamp
                _check_int64(timestamp)
                kept += 1
                max_timestamp = max(max_timestamp, timestamp)
                if moved:
                    if new_base_timestamp < 0:
                        raise CorruptBatch("a base timestamp must be a time")
                    _check_int64(delta)
                    out += _with_timestamp_delta(section, start, end, delta)
                else:
                    out += section[start:end]
        except CorruptBatch:
            return MALFORMED, kept, tombstones, max_timestamp, None
        return OK, kept, tombstones, max_timestamp, out if moved or kept != count else None

    def sift_plain(
        self, buffer: Buffer, position: int, run_bytes: int, keep_end: int
    ) -> tuple[int, int, list[SiftedRun], bytearray, int]:
        runs: list[SiftedRun] = []
        rebuilt = bytearray()
        read = 0
        while len(runs) < RUNS_MAX:
            status, header = _read_head(buffer, position, _NOT_PLAIN_TO_SIFT)
            if header is not None:
                status = self._sift_batch(buffer, position, header, rebuilt, runs, run_bytes, keep_end)
            if header is None or status != OK:
                return position, OK if status == FULL else status, runs, rebuilt, read
            read += header.record_count
            position += header.size
        return position, OK, runs, rebuilt, read

    def _sift_batch(
        self,
        buffer: Buffer,
        at: int,
        header: BatchHeader,
        rebuilt: bytearray,
        runs: list[SiftedRun],
        run_bytes: int,
        keep_end: int,
    ) -> int:
        count = header.record_count
        status, kept, tombstones, max_timestamp, section = self.sift_records(
            memoryview(buffer)[at + HEADER_BYTES : at + header.size],
            count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.base_timestamp,
            False,
            False,
        )
        if tombstones:
            return OTHER  # even if later records are malformed: the caller's slow path detects that
        if status != OK:
            return status
        last_offset = header.last_offset
        if kept == 0:
            if header.producer_id >= 0 or header.next_offset == keep_end:
                timestamp = header.max_timestamp
                runs.append((NOTHING, at, at + header.size, at, last_offset, last_offset, timestamp, last_offset, 0))
        elif section is None:
            self._copy(at, header, runs, run_bytes)
        else:
            if not header.attributes & LOG_APPEND_TIME:
                header = header._replace(max_timestamp=max_timestamp)
            start, size = len(rebuilt), HEADER_BYTES + len(section)
            rebuilt += pack_header(header._replace(batch_length=size - LENGTH_OVERHEAD_BYTES, record_count=kept))
            rebuilt += section
            timestamp = header.max_timestamp
            runs.append((REBUILT, start, start + size, at, last_offset, last_offset, timestamp, last_offset, kept))
        return OK

    @staticmethod
    def _copy(at: int, header: BatchHeader, runs: list[SiftedRun], run_bytes: int) -> None:
        last_offset, timestamp, timestamp_offset = header.last_offset, header.max_timestamp, header.last_offset
        start, first_last, records = at, last_offset, header.record_count
        if runs and runs[-1][0] == COPY and runs[-1][2] == at and at - runs[-1][1] < run_bytes:
            _, start, _, _, first_last, _, before, before_offset, more = runs.pop()
            records += more
            if before >= timestamp:
                timestamp, timestamp_offset = before, before_offset
        runs.append(
            (COPY, start, at + header.size, start, first_last, last_offset, timestamp, timestamp_offset, records)
        )

    def _keeps(self, section: memoryview, offset: int, key: Span, value: Span, drop_tombstones: bool) -> bool:
        if offset > self.latest:
            return True
        if key is None or offset < self.get(section[key[0] : key[1]]):
            return False
        return value is not None or not drop_tombstones


def _walk(section: memoryview, count: int, last_delta: int) -> Iterator[Fields]:
    """Yield the records in order; raise CorruptBatch at the first inconsistency, or if bytes follow the last record."""
    position, previous = 0, -1
    for _ in range(count):
        timestamp_delta, offset_delta, key, value, _, end = read_fields(section, position)
        if not previous < offset_delta <= last_delta:
            raise CorruptBatch(f"offset delta {offset_delta} after {previous}, the last one is {last_delta}")
        yield timestamp_delta, offset_delta, key, value, position, end
        position, previous = end, offset_delta
    if position != len(section):
        raise CorruptBatch(f"{len(section) - position} bytes follow the last record")


def _with_timestamp_delta(section: memoryview, start: int, end: int, delta: int) -> bytes:
    _, attributes = read_varint(section, start)
    _, rest = read_varlong(section, attributes + 1)
    body = bytes(section[attributes : attributes + 1]) + varlong(delta) + bytes(section[rest:end])
    return varint(len(body)) + body


def _check_int64(value: int) -> None:
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise CorruptBatch(f"timestamp {value}")


def _read_head(buffer: Buffer, position: int, not_plain: int) -> tuple[int, BatchHeader | None]:
    """Return OK and the header of the whole plain batch at `position`, or a status and None.

    OTHER: a batch for the slow path; FULL: the buffer ends before the batch does; MALFORMED: not a valid batch.
    """
    left = len(buffer) - position
    if left < _PEEK_BYTES:
        return FULL, None
    size, magic = peek_size_and_magic(buffer, position)
    if magic != MAGIC:
        return OTHER, None
    if size < HEADER_BYTES:
        return MALFORMED, None
    if left < size:
        return FULL, None
    header = unpack_header(buffer, position)
    if header.attributes & not_plain:
        return OTHER, None
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.record_count < 0:
        return MALFORMED, None
    return OK, header


def hash_key(key: Buffer, first: int, second: int) -> tuple[int, int]:
    """Return the 128-bit SipHash-2-4 of a key; keyed so that clients cannot construct collisions that lose records."""
    data = bytes(key)
    words = [
        0x736F6D6570736575 ^ first,
        0x646F72616E646F6D ^ second ^ 0xEE,
        0x6C7967656E657261 ^ first,
        0x7465646279746573 ^ second,
    ]
    whole = len(data) - len(data) % 8
    for at in range(0, whole, 8):
        _absorb(words, int.from_bytes(data[at : at + 8], "little"))
    _absorb(words, (len(data) & 0xFF) << 56 | int.from_bytes(data[whole:], "little"))
    words[2] ^= 0xEE
    _stir(words, 4)
    low = words[0] ^ words[1] ^ words[2] ^ words[3]
    words[1] ^= 0xDD
    _stir(words, 4)
    return low, words[0] ^ words[1] ^ words[2] ^ words[3]


def _absorb(words: list[int], block: int) -> None:
    words[3] ^= block
    _stir(words, 2)
    words[0] ^= block


def _stir(words: list[int], rounds: int) -> None:
    a, b, c, d = words
    for _ in range(rounds):
        a = (a + b) & _UINT64
        b = _turn(b, 13) ^ a
        a = _turn(a, 32)
        c = (c + d) & _UINT64
        d = _turn(d, 16) ^ c
        a = (a + d) & _UINT64
        d = _turn(d, 21) ^ a
        c = (c + b) & _UINT64
        b = _turn(b, 17) ^ c
        c = _turn(c, 32)
    words[:] = a, b, c, d


def _turn(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _UINT64
