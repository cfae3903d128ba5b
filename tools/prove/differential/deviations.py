"""Intentional differences from Kafka. Any difference that is not in this table is a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from headrace.base.errors import ErrorCode
from headrace.records import batch as layout
from headrace.records.compression import Codec
from headrace.records.varint import varint
from tools.prove.differential.batches import (
    EMPTY_RECORD,
    batch_of,
    good_batch,
    record_of,
    with_header,
    with_magic_3,
)

# Headrace reports only the first invalid records of a batch, Kafka all of them: a response must not grow with what a
# client sends.
RECORD_ERRORS_MAX = 16


@dataclass(frozen=True)
class Deviation:
    """A request that the two servers treat differently.

    It goes to a partition that nothing else uses: where only one server accepts it, their logs diverge.
    """

    make: Callable[[Random], Sequence[tuple[int, bytes | bytearray]]]  # partitions and records
    kafka: tuple[ErrorCode, ...]
    ours: tuple[ErrorCode, ...]
    reason: str


def _compressed_garbage(random: Random) -> bytearray:
    codec = random.choice((Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))
    batch = good_batch(random, codec=codec, count=3)[: layout.HEADER_BYTES] + random.randbytes(40)
    return with_header(batch, batch_length=len(batch) - layout.LENGTH_OVERHEAD_BYTES)


def _unknown_codec(random: Random) -> bytearray:
    return with_header(good_batch(random, codec=Codec.NONE), attributes=random.choice((5, 6, 7)))


def _offset_deltas(random: Random) -> bytearray:
    first, second = (
        b"\x00" + varint(0) + varint(delta) + varint(-1) + varint(-1) + varint(0)
        for delta in random.choice(((0, 0), (1, 0)))
    )
    return batch_of(record_of(first) + record_of(second), 2)


def _long_varint(random: Random) -> bytearray:
    """Return a batch whose offset delta is zero in five bytes, the last with bits beyond an int32."""
    return batch_of(record_of(EMPTY_RECORD[:2] + b"\x80\x80\x80\x80\x70" + EMPTY_RECORD[3:]), 1)


def _compressed_length(random: Random) -> bytearray:
    codec = random.choice((Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))
    return batch_of(record_of(EMPTY_RECORD, random.choice((200, 3, -4))), 1, codec)


def _junk_after_gzip(random: Random) -> bytearray:
    batch = good_batch(random, codec=Codec.GZIP, count=3)
    batch += b"junk"
    return with_header(batch, batch_length=len(batch) - layout.LENGTH_OVERHEAD_BYTES)


DEVIATIONS = {
    "compressed-garbage": Deviation(
        lambda random: [(0, _compressed_garbage(random))],
        (ErrorCode.UNKNOWN_SERVER_ERROR,),
        (ErrorCode.INVALID_RECORD,),
        "the client's data is wrong, not the server",
    ),
    "unknown-codec": Deviation(
        lambda random: [(0, _unknown_codec(random))],
        (ErrorCode.UNKNOWN_SERVER_ERROR,),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,),
        "an unknown compression type has its own error code",
    ),
    "offset-deltas": Deviation(
        lambda random: [(0, _offset_deltas(random))],
        (ErrorCode.NONE,),
        (ErrorCode.INVALID_RECORD,),
        "two records would have one offset; Kafka checks this only in compressed batches",
    ),
    "append-time-bit": Deviation(
        lambda random: [(0, with_header(good_batch(random, codec=Codec.NONE), attributes=layout.LOG_APPEND_TIME))],
        (ErrorCode.NONE,),
        (ErrorCode.INVALID_TIMESTAMP,),
        "on a CreateTime topic a client must not claim that the broker set the timestamp",
    ),
    "long-varint": Deviation(
        lambda random: [(0, _long_varint(random))],
        (ErrorCode.NONE,),
        (ErrorCode.INVALID_RECORD,),
        "bits beyond the 32nd are not part of the number, and readers disagree about them",
    ),
    "junk-after-gzip": Deviation(
        lambda random: [(0, _junk_after_gzip(random))],
        (ErrorCode.NONE,),
        (ErrorCode.INVALID_RECORD,),
        "bytes after the end of the stream belong to no record",
    ),
    "broken-among-good": Deviation(
        lambda random: [(0, with_magic_3(random)), (1, good_batch(random, codec=Codec.NONE))],
        (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE),
        (ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE),
        "only the partition with the broken batch gets an error; Kafka refuses the whole request",
    ),
    "same-partition-twice": Deviation(
        lambda random: [(0, good_batch(random, codec=Codec.NONE)), (0, good_batch(random, codec=Codec.GZIP))],
        (ErrorCode.NONE,),
        (ErrorCode.NONE, ErrorCode.NONE),
        "both batches are appended and acknowledged; Kafka drops the first one silently",
    ),
    "compressed-record-length": Deviation(
        lambda random: [(0, _compressed_length(random))],
        (ErrorCode.NONE,),
        (ErrorCode.INVALID_RECORD,),
        "no reader can read a record whose length does not fit; Kafka checks this only in uncompressed batches",
    ),
    "length-overflow": Deviation(
        lambda random: [(0, with_header(good_batch(random, codec=Codec.NONE), batch_length=2**31 - 1))],
        (ErrorCode.UNKNOWN_SERVER_ERROR,),
        (ErrorCode.INVALID_RECORD,),
        "Kafka's sum of length and overhead overflows; to Headrace the batch is incomplete like any that is too short",
    ),
}
