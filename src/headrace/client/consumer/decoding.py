"""Decodes what a fetch returned for one partition, in order, into Arrow record batches or records.

Control batches and aborted transactions are left out; the position still moves past them, and past gaps left by
compaction.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.fetching import FetchedPartition
from headrace.records.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    CorruptBatch,
)
from headrace.records.builder import BatchBuilder
from headrace.records.columns import (
    COLUMN_BITS,
    DECODED_BYTES_MAX,
    MICROSECONDS,
    MILLISECONDS,
    OFFSET_MAX,
    column_bits,
    each_binary,
    each_headers,
    record_batch_of,
)
from headrace.records.compression import decompress
from headrace.records.kernel import decode_columns, reusable, scan_batches
from headrace.records.kernel_types import Columns, MalformedSection, ScannedBatch, Section
from headrace.records.legacy import MAGIC_1, decode_any_records, iterate_any, read_any_header
from headrace.records.record import Headers

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE = 64 * 1024
BYTES_AT_ONCE = 64 << 20  # decompressed bytes that are decoded together
PLACE_COLUMNS = ("topic", "partition")  # the same value in every row
ALL_COLUMNS = (*PLACE_COLUMNS, *COLUMN_BITS)


class Shape(NamedTuple):
    """The columns of a record batch, in order; columns not named are not copied out of the fetch."""

    columns: tuple[str, ...] = ("offset", "timestamp", "key", "value", "headers")
    timestamp_unit: str = MILLISECONDS

    def check(self) -> Shape:
        for name in self.columns:
            if name not in ALL_COLUMNS:
                raise ValueError(f"{name!r} is no column of records; there are {', '.join(ALL_COLUMNS)}")
        if self.timestamp_unit not in (MILLISECONDS, MICROSECONDS):
            raise ValueError(f"timestamp unit {self.timestamp_unit!r}: expected {MILLISECONDS} or {MICROSECONDS}")
        return self

    @property
    def decoded(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in PLACE_COLUMNS)


class ConsumerRecord(NamedTuple):
    """A record as `poll` returns it."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds since the epoch
    timestamp_type: int  # 0: set by the producer, 1: time of the append to the log
    key: bytes | None
    value: bytes | None
    headers: Headers


RECORD_SHAPE = Shape(("offset", "timestamp", "timestamp_type", "key", "value", "headers"))


class _Decoded:
    """Rows of some batches, of which the first `at` have been returned."""

    def __init__(self, found: Columns, shape: Shape, next_offset: int, epoch: int) -> None:
        assert found.offsets is not None
        self.found = found
        self.shape = shape
        self.next_offset = next_offset
        self.epoch = epoch
        self.offsets = memoryview(found.offsets).cast("B").cast("q")
        self.at = 0
        self.record_batch: pa.RecordBatch | None = None
        self.records: list[ConsumerRecord] | None = None

    @property
    def left(self) -> int:
        return self.found.rows - self.at


class FetchedBatches:
    """The part of a fetch from its offset to before `end_offset`.

    `position` is the offset after what was returned, `epoch` the leader epoch there; `next_offset` is the offset after
    all of it.
    """

    def __init__(
        self,
        fetched: FetchedPartition,
        *,
        end_offset: int = OFFSET_MAX,
        check_crcs: bool = True,
        constants: Constants | None = None,
    ) -> None:
        """Scan the batches. Raise KafkaError CORRUPT_MESSAGE if not even the first one is complete."""
        self.partition = fetched.partition
        self.position = fetched.fetch_offset
        self.epoch = -1
        self.size = len(fetched.data)
        self._data = fetched.data
        self._end_offset = end_offset
        self._check_crcs = check_crcs
        self._constants = constants or Constants(fetched.partition)
        self._decoded: _Decoded | None = None
        self._next = 0
        try:
            self._batches, self.next_offset, self.last_epoch = _scan(fetched, end_offset)
        except CorruptBatch as error:
            raise self._corrupt(self.position, error) from error
        self.rows = sum(batch.record_count for batch in self._batches)  # includes rows below the position

    @property
    def is_spent(self) -> bool:
        return self.position >= self.next_offset

    def take_batch(self, shape: Shape, rows_max: int = ROWS_AT_ONCE) -> pa.RecordBatch | None:
        """Return the next rows, or None if there are no more.

        Raise KafkaError CORRUPT_MESSAGE if the next batch is damaged, after all rows before it have been returned.
        """
        decoded = self._more(shape, rows_max)
        if decoded is None:
            return None
        rows = min(decoded.left, rows_max)
        if decoded.record_batch is None:
            decoded.record_batch = self._constants.add_to(
                record_batch_of(decoded.found, shape.decoded, shape.timestamp_unit), decoded.found.rows, shape
            )
        batch = decoded.record_batch
        if rows < decoded.found.rows:
            batch = batch.slice(decoded.at, rows)
        self._advance(decoded, rows)
        return batch

    def take_records(self, rows_max: int) -> list[ConsumerRecord]:
        """Return the next records, at most `rows_max`; none if there are no more. Errors are those of `take_batch`."""
        decoded = self._more(RECORD_SHAPE, rows_max)
        if decoded is None:
            return []
        if decoded.records is None:
            decoded.records = _records(self.partition, decoded)
        rows = min(decoded.left, rows_max)
        records = decoded.records[decoded.at : decoded.at + rows]
        self._advance(decoded, rows)
        return records

    def _advance(self, decoded: _Decoded, rows: int) -> None:
        decoded.at += rows
        self.epoch = decoded.epoch
        if decoded.left:
            self.position = decoded.offsets[decoded.at]
        else:
            self._decoded = None
            # Never move back, even if a broker's batches are out of order.
            self.position = max(
                self.position, decoded.next_offset if self._next < len(self._batches) else self.next_offset
            )

    def _more(self, shape: Shape, rows_max: int) -> _Decoded | None:
        decoded = self._decoded
        if decoded is not None and decoded.shape != shape:
            # The caller wants another shape: decode the batches again, without the rows below the position.
            self._next, decoded = self._first_with(self.position), None
        while decoded is None and self._next < len(self._batches):
            decoded = self._decode(shape, rows_max)
            if decoded.found.rows == 0:
                self.position, decoded = max(self.position, decoded.next_offset), None
        if decoded is None:
            self.position = max(self.position, self.next_offset)
        self._decoded = decoded
        return decoded

    def _first_with(self, offset: int) -> int:
        return next(
            (index for index, batch in enumerate(self._batches) if batch.last_offset >= offset), len(self._batches)
        )

    def _decode(self, shape: Shape, rows_max: int) -> _Decoded:
        first = self._next
        sections = self._sections(rows_max)
        requested = column_bits(shape.decoded) | COLUMN_BITS["offset"]
        microseconds = shape.timestamp_unit == MICROSECONDS
        while True:
            try:
                found = decode_columns(sections, requested, self.position, self._end_offset, microseconds)
                break
            except MalformedSection as error:
                self._next = first + error.section
                if error.section == 0:
                    raise self._corrupt(self._batches[first].base_offset, error) from error
                del sections[error.section :]
        last = self._batches[self._next - 1]
        return _Decoded(found, shape, min(last.last_offset + 1, self.next_offset), last.leader_epoch)

    def _sections(self, rows_max: int) -> list[Section]:
        """Return the sections of the next batches, at least one, that are decoded together."""
        sections: list[Section] = []
        rows = size = 0
        epoch = self._batches[self._next].leader_epoch
        while self._next < len(self._batches) and rows < rows_max and size < BYTES_AT_ONCE:
            batch = self._batches[self._next]
            if batch.leader_epoch != epoch:
                break
            try:
                sections.append(self._section(batch))
            except CorruptBatch as error:
                if not sections:
                    raise self._corrupt(batch.base_offset, error) from error
                break  # return the good batches before it first
            rows += batch.record_count
            size += len(sections[-1].records)
            self._next += 1
        return sections

    def _section(self, batch: ScannedBatch) -> Section:
        position, end = batch.position, batch.position + batch.size
        if batch.magic <= MAGIC_1:
            return _legacy_section(self._data[position:end])
        if self._check_crcs:
            found = crc32c(self._data[position + CRC_START : end])
            if found != batch.crc:
                raise CorruptBatch(f"its checksum is {found:#010x}, its header says {batch.crc:#010x}")
        records = self._data[position + HEADER_BYTES : end]
        codec = batch.attributes & CODEC_MASK
        if codec:
            records = memoryview(decompress(codec, records, DECODED_BYTES_MAX, reusable))
        append_time = batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else None
        return Section(records, batch.record_count, batch.base_offset, batch.base_timestamp, append_time)

    def _corrupt(self, offset: int, error: Exception) -> KafkaError:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self.partition} at offset {offset}: {error}")


def _scan(fetched: FetchedPartition, end_offset: int) -> tuple[list[ScannedBatch], int, int]:
    """Return the batches to read, the offset after all of them, and the leader epoch of the last one."""
    whole = _whole_batches(fetched.data)
    start, next_offset, epoch = fetched.fetch_offset, fetched.fetch_offset, -1
    waiting = sorted(fetched.aborted, key=lambda pair: pair[1], reverse=True)
    open_aborts: set[int] = set()
    batches: list[ScannedBatch] = []
    for batch in whole:
        last_offset, attributes = batch.last_offset, batch.attributes
        while waiting and waiting[-1][1] <= last_offset:
            open_aborts.add(waiting.pop()[0])
        if batch.base_offset >= end_offset and batch.magic > MAGIC_1:
            next_offset = max(next_offset, end_offset)
            break
        if last_offset >= next_offset:
            next_offset, epoch = last_offset + 1, batch.leader_epoch
        if attributes & CONTROL:
            open_aborts.discard(batch.producer_id)  # its marker: later batches belong to another transaction
        elif last_offset < start or not batch.record_count:
            continue
        elif not (attributes & TRANSACTIONAL and batch.producer_id in open_aborts):
            batches.append(batch)
    if whole and next_offset <= start:
        raise CorruptBatch(f"the batches end before it, at {next_offset}")
    return batches, min(next_offset, max(end_offset, start)), epoch


def _whole_batches(data: memoryview) -> list[ScannedBatch]:
    """Scan all complete batches. Raise CorruptBatch if the data does not begin with one.

    Damage further back is found when that part is fetched itself.
    """
    found, position = scan_batches(data)
    try:
        for at, header in iterate_any(data[position:]):  # an older format, or nothing
            found.append(
                ScannedBatch(
                    position + at,
                    header.size,
                    header.base_offset,
                    header.last_offset,
                    header.leader_epoch,
                    header.magic,
                    header.crc,
                    header.attributes,
                    header.base_timestamp,
                    header.max_timestamp,
                    header.producer_id,
                    header.record_count,
                )
            )
    except CorruptBatch:
        if not found:
            raise
    if not found and len(data):
        raise CorruptBatch(f"{len(data)} bytes are not one whole batch")
    return found


def _legacy_section(message: memoryview) -> Section:
    """Convert messages older than record batches; they are rare enough to be decoded in Python."""
    header = read_any_header(message)
    records = list(decode_any_records(message, limit=DECODED_BYTES_MAX))
    base_offset = records[0].offset if records else header.base_offset
    builder = BatchBuilder()
    for record in records:
        builder.append(record.timestamp, record.key, record.value, offset_delta=record.offset - base_offset)
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    return Section(builder.section, builder.count, base_offset, builder.base_timestamp or 0, append_time)


def _records(partition: TopicPartition, decoded: _Decoded) -> list[ConsumerRecord]:
    found, rows = decoded.found, decoded.found.rows
    assert found.timestamps is not None and found.timestamp_types is not None
    topic, index = partition
    fields = zip(
        repeat(topic, rows),
        repeat(index, rows),
        decoded.offsets.tolist(),
        memoryview(found.timestamps).cast("B").cast("q").tolist(),
        memoryview(found.timestamp_types).cast("B").cast("i").tolist(),
        each_binary(found.keys, rows),
        each_binary(found.values, rows),
        each_headers(found.headers, rows),
        strict=True,
    )
    return list(map(ConsumerRecord._make, fields))


class Constants:
    """Columns with the same value in every row of a partition: created once, sliced to length."""

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._columns: dict[str, pa.Array] = {}

    def add_to(self, batch: pa.RecordBatch, rows: int, shape: Shape) -> pa.RecordBatch:
        import pyarrow as pa

        if shape.columns == shape.decoded:
            return batch
        arrays = [self._column(name, rows) if name in PLACE_COLUMNS else batch.column(name) for name in shape.columns]
        return pa.RecordBatch.from_arrays(arrays, list(shape.columns))

    def _column(self, name: str, rows: int) -> pa.Array:
        import pyarrow as pa

        column = self._columns.get(name)
        if column is None or len(column) < rows:
            topic, partition = self._partition
            value = pa.scalar(topic, pa.utf8()) if name == "topic" else pa.scalar(partition, pa.int32())
            column = self._columns[name] = pa.repeat(value, max(rows, ROWS_AT_ONCE))
        return column.slice(0, rows)
