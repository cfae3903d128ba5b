"""Result types and status codes shared by the compiled kernel and its pure-Python fallback."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.records.batch import Buffer, CorruptBatch

OK: Final = 0
MALFORMED: Final = 1  # a record's length does not match its fields
COUNT_MISMATCH: Final = 2  # the bytes end before `count` records were read
TRAILING_BYTES: Final = 3
OFFSET_NOT_SEQUENTIAL: Final = 4
MISSING_KEY: Final = 5
TIMESTAMP_OUT_OF_RANGE: Final = 6
FULL: Final = 7  # the offset map cannot take another key
OTHER: Final = 8  # a batch that must be processed in Python

# Kinds of SiftedRun.
COPY: Final = 0
REBUILT: Final = 1
NOTHING: Final = 2

# Bits that select the columns that `decode_columns` returns.
OFFSETS_COLUMN: Final = 1
TIMESTAMPS_COLUMN: Final = 2
KEYS_COLUMN: Final = 4
VALUES_COLUMN: Final = 8
HEADERS_COLUMN: Final = 16
TIMESTAMP_TYPES_COLUMN: Final = 32

RECORD_ERRORS_MAX: Final = 16  # bad records reported per batch, which may have a million of them
SECTION_BYTES_MAX: Final = 2**31 - 1  # total of all sections in one decode: Arrow's binary columns have 32-bit offsets

# Status, index of the first bad record (-1 if none), largest timestamp (-1 if no record has one), offset delta of the first
# record with it (-1 if none), and the records with a missing key or a wrong timestamp as (index, status). A plain tuple for
# speed: one is made per produced batch. Structural errors outrank bad records: only OK, MISSING_KEY and TIMESTAMP_OUT_OF_RANGE
# mean that everything was read.
ValidationResult = tuple[int, int, int, int, tuple[tuple[int, int], ...]]

# Kind, start, end, position of the first batch in the buffer, last offset of the first batch, last offset, largest timestamp,
# last offset of the batch with that timestamp, number of records.
SiftedRun = tuple[int, int, int, int, int, int, int, int, int]


class BinaryColumn(NamedTuple):
    """Arrow's layout of a binary array: a validity bitmap (None if no row is null), int32 offsets, bytes."""

    validity: Buffer | None
    offsets: Buffer
    data: Buffer
    null_count: int


class HeaderColumn(NamedTuple):
    """Arrow's layout of list<struct<key, value>>: int32 offsets into `keys` and `values`."""

    validity: Buffer | None
    offsets: Buffer
    keys: BinaryColumn
    values: BinaryColumn


class Columns(NamedTuple):
    """Decoded columns; those that were not requested are None."""

    rows: int
    offsets: Buffer | None  # int64
    timestamps: Buffer | None  # int64, milliseconds or microseconds
    keys: BinaryColumn | None
    values: BinaryColumn | None
    headers: HeaderColumn | None
    timestamp_types: Buffer | None  # int32: 0 for CreateTime, 1 for LogAppendTime


class ScannedBatch(NamedTuple):
    """The position of a whole batch in a buffer, and the header fields that a reader needs."""

    position: int
    size: int
    base_offset: int  # for the old formats (magic 0 and 1) the last offset, the only one known
    last_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    record_count: int


class Section(NamedTuple):
    """The decompressed records of one batch, with the header fields needed to decode them."""

    records: Buffer
    record_count: int
    base_offset: int
    base_timestamp: int
    append_time: int | None  # timestamp of every record if the batch has LogAppendTime, else None


class MalformedSection(CorruptBatch):
    """A section that contradicts its header or structure; `index` and `status` tell where and how."""

    def __init__(self, section: int, index: int, status: int) -> None:
        super().__init__(f"batch {section}, record {index}: malformed (status {status})")
        self.section = section
        self.index = index
        self.status = status
