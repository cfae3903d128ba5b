"""A batch of records: open while records are added, built once, given a sequence, and sent until its final response."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, Protocol

from headrace.base.ids import TopicPartition
from headrace.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, advance_sequence, checksum
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec
from headrace.records.record import Headers, decode_records

# Upper bound per record: its length, attributes, two deltas, and the lengths of key, value and headers.
RECORD_OVERHEAD_BYTES = 31
HEADER_OVERHEAD_BYTES = 10
_PRODUCER = Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_POSITION = 43
_CRC = Struct(">I")
_CRC_POSITION = 17


class ProducerIdentity(NamedTuple):
    producer_id: int
    epoch: int


NO_PRODUCER = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Delivery(Protocol):
    """Receives the outcome of records: once for each record, perhaps in several calls."""

    def delivered(self, partition: TopicPartition, base_offset: int, count: int, timestamp_ms: int) -> None: ...

    def refused(self, error: Exception, count: int) -> None: ...


class Entry(NamedTuple):
    delivery: Delivery
    records: int
    timestamp_ms: int


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return an upper bound of the size of a record."""
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += HEADER_OVERHEAD_BYTES + len(name.encode()) + len(content or b"")
    return size


class ProducerBatch:
    """A batch for one partition.

    `reserved` is how much of buffer.memory it holds, in bytes. Times are monotonic.
    """

    __slots__ = (
        "attempts",
        "base_sequence",
        "count",
        "created_at",
        "deadline",
        "encoded",
        "entries",
        "identity",
        "is_closed",
        "is_done",
        "number",
        "open",
        "partition",
        "plain_bytes",
        "reserved",
        "retry_at",
        "sequence_was_reset",
        "trouble",
    )

    def __init__(self, partition: TopicPartition, created_at: float, deadline: float) -> None:
        self.partition = partition
        self.created_at = created_at
        self.deadline = deadline
        self.open: BatchBuilder | None = BatchBuilder()
        self.encoded: bytearray | None = None
        self.count = 0
        self.plain_bytes = 0  # size before compression
        self.reserved = 0
        self.entries: list[Entry] = []
        self.attempts = 0
        self.retry_at = 0.0
        self.identity = NO_PRODUCER
        self.base_sequence = NO_SEQUENCE
        self.sequence_was_reset = False
        self.is_closed = False
        self.is_done = False
        self.number = 0  # creation order; the pieces of a split batch keep its number
        self.trouble = ""  # reason for the last retry

    @property
    def size(self) -> int:
        if self.encoded is not None:
            return len(self.encoded)
        assert self.open is not None
        return self.open.size

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence != NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        return advance_sequence(self.base_sequence, self.count - 1)

    def append(
        self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers, delivery: Delivery
    ) -> None:
        assert self.open is not None and not self.is_closed
        self.open.append(timestamp_ms, key, value, headers)
        self.entries.append(Entry(delivery, 1, timestamp_ms))
        self.count += 1

    def put_encoded(self, encoded: bytearray, count: int, plain_bytes: int, entries: list[Entry]) -> None:
        """Set the contents to records that were encoded elsewhere."""
        assert self.count == 0
        self.open, self.encoded, self.is_closed = None, encoded, True
        self.count, self.plain_bytes, self.entries = count, plain_bytes, entries

    def build(self, codec: Codec, level: int | None, transactional: bool) -> None:
        """Close and encode the batch. May be called in another thread once the batch is closed."""
        if self.encoded is None:
            assert self.open is not None
            self.is_closed = True
            self.plain_bytes = self.open.size
            self.encoded = self.open.build(codec=codec, level=level, transactional=transactional)
            self.open = None

    def stamp(self) -> memoryview:
        """Write the current identity and sequence into the batch and return the bytes to send."""
        assert self.encoded is not None
        producer = _PRODUCER.pack(*self.identity, self.base_sequence)
        end = _PRODUCER_POSITION + len(producer)
        if self.encoded[_PRODUCER_POSITION:end] != producer:
            if self.attempts:
                # A connection that is closing may still be writing the old bytes.
                self.encoded = bytearray(self.encoded)
            self.encoded[_PRODUCER_POSITION:end] = producer
            _CRC.pack_into(self.encoded, _CRC_POSITION, checksum(self.encoded, 0, len(self.encoded)))
        return memoryview(self.encoded)

    def deliver(self, base_offset: int, append_time_ms: int) -> None:
        """Report all records as delivered.

        `base_offset` is -1 if it is not known, `append_time_ms` is -1 if the records' own timestamps apply.
        """
        offset = base_offset
        self.is_done = True
        for delivery, count, timestamp_ms in self.entries:
            delivery.delivered(self.partition, offset, count, timestamp_ms if append_time_ms < 0 else append_time_ms)
            if base_offset >= 0:
                offset += count

    def refuse(self, error: Exception) -> None:
        self.is_done = True
        for delivery, count, _ in self.entries:
            delivery.refused(error, count)


def split(batch: ProducerBatch, codec: Codec, level: int | None, transactional: bool) -> list[ProducerBatch]:
    """Split a batch into two with the same sequences, for a topic that does not accept batches of this size."""
    assert batch.encoded is not None and batch.count > 1
    records = list(decode_records(batch.encoded))
    half = len(records) // 2
    pieces: list[ProducerBatch] = []
    for part, entries in zip((records[:half], records[half:]), _divide(batch.entries, half), strict=True):
        piece = ProducerBatch(batch.partition, batch.created_at, batch.deadline)
        builder = BatchBuilder()
        for record in part:
            builder.append(record.timestamp, record.key, record.value, record.headers)
        piece.open, piece.count, piece.entries = builder, len(part), entries
        piece.reserved = batch.reserved * len(part) // batch.count
        piece.build(codec, level, transactional)
        piece.number, piece.identity = batch.number, batch.identity
        if batch.has_sequence:
            piece.base_sequence = advance_sequence(batch.base_sequence, sum(other.count for other in pieces))
        piece.sequence_was_reset = batch.sequence_was_reset
        pieces.append(piece)
    pieces[0].reserved += batch.reserved - sum(piece.reserved for piece in pieces)
    return pieces


def _divide(entries: list[Entry], at: int) -> tuple[list[Entry], list[Entry]]:
    """Return the entries of the first `at` records and those of the rest; an entry for many rows may be in both."""
    before: list[Entry] = []
    after: list[Entry] = []
    for entry in entries:
        first = min(at, entry.records)
        if first:
            before.append(entry._replace(records=first))
        if entry.records > first:
            after.append(entry._replace(records=entry.records - first))
        at -= first
    return before, after
