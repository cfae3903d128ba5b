"""Building record batches with the same bytes as Kafka's own builder."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from headrace.records import batch as layout
from headrace.records.batch import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, BatchHeader
from headrace.records.compression import Codec, compress
from headrace.records.record import Headers, Record
from headrace.records.varint import varint, varlong

_CRC = Struct(">I")
_CRC_POSITION = 17
_NO_ATTRIBUTES = b"\x00"


class BatchBuilder:
    """Collects records and builds a batch. The base timestamp is that of the first record, unless given."""

    __slots__ = ("base_timestamp", "count", "max_timestamp", "section")

    def __init__(self, base_timestamp: int | None = None) -> None:
        self.base_timestamp = base_timestamp
        self.max_timestamp = layout.NO_TIMESTAMP
        self.count = 0
        self.section = bytearray()

    @classmethod
    def from_section(cls, section: bytearray, count: int, base_timestamp: int, max_timestamp: int) -> BatchBuilder:
        """Return a builder with records that are already encoded."""
        builder = cls(base_timestamp)
        builder.section, builder.count, builder.max_timestamp = section, count, max_timestamp
        return builder

    @property
    def size(self) -> int:
        """Return the size of the batch in bytes if it were built now without compression."""
        return HEADER_BYTES + len(self.section)

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        offset_delta: int | None = None,
    ) -> None:
        """Append a record. `offset_delta` is for records that keep their offsets, possibly with gaps."""
        if self.base_timestamp is None:
            self.base_timestamp = timestamp
        body = b"".join(
            (
                _NO_ATTRIBUTES,
                varlong(timestamp - self.base_timestamp),
                varint(self.count if offset_delta is None else offset_delta),
                _NULL if key is None else varint(len(key)) + key,
                _NULL if value is None else varint(len(value)) + value,
                _NO_HEADERS if not headers else _headers(headers),
            )
        )
        self.section += varint(len(body))
        self.section += body
        self.count += 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp

    def build(
        self,
        *,
        base_offset: int = 0,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        producer_id: int = layout.NO_PRODUCER_ID,
        producer_epoch: int = layout.NO_PRODUCER_EPOCH,
        base_sequence: int = layout.NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
        leader_epoch: int = -1,
        last_offset_delta: int | None = None,
        append_time: int | None = None,
    ) -> bytearray:
        attributes = int(codec)
        attributes |= layout.TRANSACTIONAL if transactional else 0
        attributes |= layout.CONTROL if control else 0
        attributes |= layout.LOG_APPEND_TIME if append_time is not None else 0
        return build_from_section(
            BatchHeader(
                base_offset=base_offset,
                batch_length=0,
                leader_epoch=leader_epoch,
                magic=layout.MAGIC,
                crc=0,
                attributes=attributes,
                last_offset_delta=self.count - 1 if last_offset_delta is None else last_offset_delta,
                base_timestamp=layout.NO_TIMESTAMP if self.base_timestamp is None else self.base_timestamp,
                max_timestamp=self.max_timestamp if append_time is None else append_time,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                record_count=self.count,
            ),
            self.section,
            level,
        )


_NULL = varint(-1)
_NO_HEADERS = varint(0)


def _headers(headers: Headers) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        key = name.encode()
        parts += (varint(len(key)), key)
        parts.append(_NULL if value is None else varint(len(value)) + value)
    return b"".join(parts)


def build_from_section(header: BatchHeader, section: layout.Buffer, level: int | None = None) -> bytearray:
    """Build a batch from encoded records: compress them by the header's codec, fill in length and checksum."""
    codec = Codec(header.codec)
    records = section if codec is Codec.NONE else compress(codec, section, level)
    size = HEADER_BYTES + len(records)
    out = bytearray(layout.pack_header(header._replace(batch_length=size - LENGTH_OVERHEAD_BYTES)))
    out += records
    _CRC.pack_into(out, _CRC_POSITION, layout.checksum(out, 0, size))
    return out


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = layout.NO_PRODUCER_ID,
    producer_epoch: int = layout.NO_PRODUCER_EPOCH,
    base_sequence: int = layout.NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
    append_time: int | None = None,
) -> bytearray:
    """Build a batch of the records in order, starting at `base_offset`; the offsets in the records are ignored."""
    builder = BatchBuilder()
    for record in records:
        builder.append(record.timestamp, record.key, record.value, record.headers)
    if builder.count == 0:
        raise ValueError("a batch needs a record")
    return builder.build(
        base_offset=base_offset,
        codec=codec,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        leader_epoch=leader_epoch,
        append_time=append_time,
    )


def empty_batch(header: BatchHeader) -> tuple[BatchHeader, bytearray]:
    """Return the header and the batch without its records, as compaction leaves it.

    Offsets, sequences and producer stay, and with them the producer's state or the end of the log.
    """
    attributes = header.attributes & ~(layout.CODEC_MASK | layout.DELETE_HORIZON)
    empty = header._replace(attributes=attributes, record_count=0, base_timestamp=layout.NO_TIMESTAMP)
    return empty, build_from_section(empty, b"")
