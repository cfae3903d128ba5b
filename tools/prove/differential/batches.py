"""Record batches, valid ones and each kind of invalid one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from struct import pack_into

from headrace.records import batch as layout
from headrace.records.batch import BatchHeader, unpack_header
from headrace.records.builder import BatchBuilder, build_from_section
from headrace.records.compression import Codec
from headrace.records.varint import varint

CODECS = tuple(Codec)
FIRST_MS = 1_700_000_000_000


def good_batch(
    random: Random,
    *,
    codec: Codec | None = None,
    count: int | None = None,
    keys: bool = False,
    base_ms: int = FIRST_MS,
    spread_ms: int = 1_000_000,
    value_bytes_max: int = 200,
    producer: tuple[int, int, int] | None = None,
) -> bytearray:
    """Build a valid batch; `producer` is id, epoch and sequence, and with `keys` every record has a key."""
    builder = BatchBuilder()
    in_order = random.random() < 0.6
    time = base_ms + random.randrange(spread_ms)
    for _ in range(count if count is not None else random.choice((1, 1, 2, 3, 10, 40))):
        key = random.randbytes(random.randrange(20)) if keys or random.random() < 0.7 else None
        value = random.randbytes(random.randrange(value_bytes_max)) if random.random() < 0.9 else None
        headers = tuple(
            (f"h{number}", random.choice((None, b"", b"value"))) for number in range(random.choice((0, 0, 0, 1, 3)))
        )
        builder.append(time, key, value, headers)
        time = time + random.randrange(5) if in_order else base_ms + random.randrange(spread_ms)
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    return builder.build(
        codec=random.choice(CODECS) if codec is None else codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def sealed(batch: bytearray) -> bytearray:
    """Update the checksum to match the content and return the batch."""
    pack_into(">I", batch, 17, layout.checksum(batch, 0, len(batch)))
    return batch


def with_header(batch: bytearray, **changes: int) -> bytearray:
    """Replace header fields and update the checksum."""
    header = unpack_header(batch)._replace(**changes)
    return sealed(bytearray(layout.pack_header(header)) + batch[layout.HEADER_BYTES :])


def _plain(random: Random, count: int | None = None) -> bytearray:
    return good_batch(random, codec=Codec.NONE, count=count)


def batch_of(section: bytes, count: int, codec: Codec = Codec.NONE) -> bytearray:
    header = BatchHeader(0, 0, -1, 2, 0, int(codec), count - 1, FIRST_MS, FIRST_MS, -1, -1, -1, count)
    return build_from_section(header, section)


def record_of(body: bytes, length: int | None = None) -> bytes:
    return varint(len(body) if length is None else length) + body


# attributes, timestamp delta, offset delta, key, value, headers
EMPTY_RECORD = b"\x00" + varint(0) + varint(0) + varint(-1) + varint(-1) + varint(0)


def _flip(random: Random) -> bytearray:
    batch = _plain(random)
    batch[random.randrange(layout.CRC_START, len(batch))] ^= 1 << random.randrange(8)
    return batch


def _magic(magic: int) -> Callable[[Random], bytearray]:
    def make(random: Random) -> bytearray:
        batch = _plain(random)
        batch[16] = magic
        return batch

    return make


def _count(change: Callable[[int], int]) -> Callable[[Random], bytearray]:
    def make(random: Random) -> bytearray:
        batch = good_batch(random, codec=random.choice((Codec.NONE, Codec.GZIP, Codec.ZSTD)))
        return with_header(batch, record_count=change(unpack_header(batch).record_count))

    return make


def _both_counts(change: Callable[[int], int]) -> Callable[[Random], bytearray]:
    """Make header count and last offset delta agree with each other, but not with the records."""

    def make(random: Random) -> bytearray:
        batch = good_batch(random, codec=random.choice((Codec.NONE, Codec.GZIP, Codec.LZ4)), count=3)
        count = change(3)
        return with_header(batch, record_count=count, last_offset_delta=count - 1)

    return make


def _length(change: Callable[[int], int]) -> Callable[[Random], bytearray]:
    def make(random: Random) -> bytearray:
        batch = _plain(random)
        return with_header(batch, batch_length=change(unpack_header(batch).batch_length))

    return make


def _attributes(bits: int, codec: Codec = Codec.NONE) -> Callable[[Random], bytearray]:
    def make(random: Random) -> bytearray:
        batch = good_batch(random, codec=codec)
        return with_header(batch, attributes=unpack_header(batch).attributes | bits)

    return make


def _field(**changes: int) -> Callable[[Random], bytearray]:
    return lambda random: with_header(_plain(random), **changes)


def _bodies(*bodies: bytes, count: int | None = None) -> Callable[[Random], bytearray]:
    def make(random: Random) -> bytearray:
        codec = random.choice((Codec.NONE, Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))
        return batch_of(b"".join(bodies), len(bodies) if count is None else count, codec)

    return make


# Both servers refuse each of these with the same error. A request without any records field is missing here because
# Kafka never responds to it.
BAD: dict[str, Callable[[Random], bytes | bytearray | None]] = {
    "flipped-bit": _flip,
    "magic-0": _magic(0),
    "magic-1": _magic(1),
    "magic-3": _magic(3),
    "magic-negative": _magic(255),
    "no-bytes": lambda random: b"",
    "few-bytes": lambda random: random.randbytes(random.randrange(1, 61)),
    "garbage": lambda random: random.randbytes(random.randrange(61, 300)),
    "zeros": lambda random: bytes(random.randrange(1, 200)),
    "truncated": lambda random: (batch := _plain(random, 5))[: len(batch) - random.randrange(1, len(batch) - 1)],
    "garbage-behind": lambda random: _plain(random) + bytes(random.randrange(12, 80)),
    "two-batches": lambda random: _plain(random) + _plain(random),
    "length-too-small": _length(lambda length: length - 1),
    "length-below-header": _length(lambda length: 10),
    "length-too-large": _length(lambda length: length + 1),
    "length-negative": _length(lambda length: -5),
    "length-huge": _length(lambda length: 2**30),
    "count-larger": _count(lambda count: count + 1),
    "count-smaller": _count(lambda count: count - 1),
    "count-negative": _count(lambda count: -1),
    "count-huge": _count(lambda count: 2**31 - 1),
    "counts-larger": _both_counts(lambda count: count + 2),
    "counts-smaller": _both_counts(lambda count: count - 1),
    "counts-huge": _both_counts(lambda count: 1 << 24),
    "last-delta-negative": _field(last_offset_delta=-3),
    "last-delta-huge": _field(last_offset_delta=2**31 - 1),
    "control": _attributes(layout.CONTROL),
    "control-gzip": _attributes(layout.CONTROL, Codec.GZIP),
    "transactional-without-id": _attributes(layout.TRANSACTIONAL),
    "base-offset-5": _field(base_offset=5),
    "base-offset-negative": _field(base_offset=-1),
    "producer-without-sequence": _field(producer_id=77, producer_epoch=0),
    "producer-with-negative-sequence": _field(producer_id=77, producer_epoch=0, base_sequence=-7),
    "record-length-too-large": lambda random: batch_of(record_of(EMPTY_RECORD, 200), 1),
    "record-length-too-small": lambda random: batch_of(record_of(EMPTY_RECORD, 3), 1),
    "record-length-negative": lambda random: batch_of(record_of(EMPTY_RECORD, -4), 1),
    "record-length-zero": _bodies(record_of(b"")),
    "record-with-rest": _bodies(record_of(EMPTY_RECORD + b"rest")),
    "key-longer-than-record": _bodies(
        record_of(b"\x00" + varint(0) + varint(0) + varint(99) + b"k" + varint(-1) + varint(0))
    ),
    "value-longer-than-record": _bodies(
        record_of(b"\x00" + varint(0) + varint(0) + varint(-1) + varint(99) + varint(0))
    ),
    "header-count-negative": _bodies(record_of(EMPTY_RECORD[:-1] + varint(-1))),
    "header-count-huge": _bodies(record_of(EMPTY_RECORD[:-1] + varint(1 << 20))),
    "header-name-null": _bodies(record_of(EMPTY_RECORD[:-1] + varint(1) + varint(-1) + varint(-1))),
    "bytes-behind-records": _bodies(record_of(EMPTY_RECORD), b"\x00", count=1),
    "no-records-but-count": _bodies(b"", count=1),
}

# So broken that Kafka refuses the whole request, not only the partition (see `deviations`).
BROKEN = {
    "magic-3",
    "magic-negative",
    "garbage",
    "length-below-header",
    "length-negative",
    "zeros",
    "few-bytes",
    "transactional-without-id",
}
with_magic_3 = _magic(3)

# Unusual but accepted by both; the stored bytes must be equal.
ODD: dict[str, Callable[[Random], bytes | bytearray | None]] = {
    "max-timestamp-lies": lambda random: with_header(_plain(random), max_timestamp=FIRST_MS + 5),
    "max-timestamp-lies-gzip": lambda random: with_header(
        good_batch(random, codec=Codec.GZIP), max_timestamp=FIRST_MS + 5_000_000
    ),
    "leader-epoch-from-client": _field(leader_epoch=44),
    "record-attributes": _bodies(record_of(b"\x7f" + EMPTY_RECORD[1:])),
    "no-timestamp": lambda random: with_header(
        batch_of(record_of(EMPTY_RECORD), 1), base_timestamp=-1, max_timestamp=-1
    ),
    "delete-horizon": _attributes(layout.DELETE_HORIZON),
    "unused-attribute-bits": _attributes(0x80),
    "trailing-bytes": lambda random: _plain(random) + bytes(random.randrange(1, 12)),
    "half-a-second-batch": lambda random: _plain(random) + _plain(random)[:-1],
    "empty-key-and-value": _bodies(record_of(b"\x00" + varint(0) + varint(0) + varint(0) + varint(0) + varint(0))),
}
