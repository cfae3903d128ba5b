"""What the kernel and its pure-Python twin give back; both must mean the same by it."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.records.batch import Buffer, CorruptBatch

OK: Final = 0
MALFORMED: Final = 1  # a record whose length or fields do not fit
COUNT_MISMATCH: Final = 2  # the bytes end before `count` records were read
TRAILING_BYTES: Final = 3
OFFSET_NOT_SEQUENTIAL: Final = 4
MISSING_KEY: Final = 5
TIMESTAMP_OUT_OF_RANGE: Final = 6
FULL: Final = 7  # the offset map has no room for another key
OTHER: Final = 8  # a batch that the kernel leaves to Python

# What becomes of batches that are sifted.
COPY: Final = 0
REBUILT: Final = 1
NOTHING: Final = 2

# Columns that a decode may be asked for.
WANT_OFFSETS: Final = 1
WANT_TIMESTAMPS: Final = 2
WANT_KEYS: Final = 4
WANT_VALUES: Final = 8
WANT_HEADERS: Final = 16
WANT_TIMESTAMP_TYPES: Final = 32

RECORD_ERRORS_MAX: Final = 16  # a batch may have a million bad records; so many are named
SECTION_BYTES_MAX: Final = 2**31 - 1  # of all sections in one decode: Arrow's binary columns have 32-bit offsets

# Status, index of the first bad record (-1 if none), largest timestamp (-1 if no record has one), offset delta of the first
# record with it (-1 if none), and the single records with a missing key or a wrong timestamp as (index, status). A tuple, as
# it is made once per produced batch. A broken structure outranks wrong records: only 0, 5 and 6 have read everything.
ValidationResult = tuple[int, int, int, int, tuple[tuple[int, int], ...]]

# Kind, start, end, where its (first) batch begins in the buffer, last offset of the first batch, last offset, largest timestamp, last
# offset of the batch that has it, records.
SiftedRun = tuple[int, int, int, int, int, int, int, int, int]


class BinaryColumn(NamedTuple):
    """Arrow's layout of a binary array: a bit per row that is not null (None: no row is), int32 offsets, bytes."""

    validity: Buffer | None
    offsets: Buffer
    data: Buffer
    null_count: int


class HeaderColumn(NamedTuple):
    """Arrow's layout of list<struct<key, value>>: int32 offsets into the two columns below."""

    validity: Buffer | None
    offsets: Buffer
    keys: BinaryColumn
    values: BinaryColumn


class Columns(NamedTuple):
    """None is what nobody asked for."""

    rows: int
    offsets: Buffer | None  # int64
    timestamps: Buffer | None  # int64, milliseconds or microseconds
    keys: BinaryColumn | None
    values: BinaryColumn | None
    headers: HeaderColumn | None
    timestamp_types: Buffer | None  # int32: 0 as the producer said, 1 as the log appended it


class ScannedBatch(NamedTuple):
    """Where a whole batch lies in a buffer, and what of its header a reader needs."""

    position: int
    size: int
    base_offset: int  # of an old format (magic 0 and 1) the last offset: no other is known
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
    """The decompressed records of one batch, and what its header says about them."""

    records: Buffer
    record_count: int
    base_offset: int
    base_timestamp: int
    append_time: int | None  # every record's timestamp, if the batch has LogAppendTime


class MalformedSection(CorruptBatch):
    """A section that does not hold what it says: the status and the record's index say where."""

    def __init__(self, section: int, index: int, status: int) -> None:
        super().__init__(f"batch {section}, record {index}: malformed (status {status})")
        self.section = section
        self.index = index
        self.status = status
