"""Messages of magic 0 and 1, as kafka-python writes them, and garbage."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.other_clients import PythonLegacyBuilder

from headrace.records import legacy
from headrace.records.batch import LOG_APPEND_TIME, CorruptBatch
from headrace.records.builder import build_batch
from headrace.records.compression import Codec, compress
from headrace.records.record import Record

CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
RECORDS = [Record(offset, 1000 + offset, b"k" if offset % 2 else None, b"v" * offset) for offset in range(7)]


def message(magic: int, offset: int, value: bytes | None, *, timestamp: int = -1, attributes: int = 0) -> bytes:
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    body += struct.pack(">i", -1)
    body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def written_by_kafka_python(magic: int, codec: Codec, records: Sequence[Record]) -> bytes:
    """Return messages as a producer sends them: the broker has yet to set the wrapper's offset."""
    builder = PythonLegacyBuilder(magic, codec, 1 << 20)
    for record in records:
        assert builder.append(record.offset, record.timestamp if magic else None, record.key, record.value)
    return bytes(builder.build())


def at_offset(wrapper: bytes, offset: int) -> bytes:
    """Set a wrapper's offset as a broker does: the offset is not covered by the checksum."""
    return struct.pack(">q", offset) + wrapper[8:]


def decode(data: bytes) -> list[Record]:
    """Decode messages with a torn one after them, as a fetch may return."""
    records: list[Record] = []
    for position, header in legacy.iterate_any(data + message(1, 9, b"v")[:-1]):
        legacy.check_any_crc(data, position, header)
        records += legacy.decode_any_records(data[position : position + header.size])
    return records


@pytest.mark.parametrize("codec", CODECS)
def test_magic_1_messages_of_kafka_python_are_decoded(codec: Codec) -> None:
    data = written_by_kafka_python(1, codec, RECORDS)
    if codec is Codec.NONE:
        assert decode(data) == RECORDS
    else:
        # Inner offsets start at 0; the wrapper has the offset of the last one.
        assert decode(at_offset(data, 506)) == [record._replace(offset=500 + record.offset) for record in RECORDS]
        header = legacy.read_any_header(at_offset(data, 506))
        assert (header.last_offset, header.next_offset) == (506, 507)


@pytest.mark.parametrize("codec", CODECS)
def test_magic_0_messages_have_absolute_offsets_and_no_timestamp(codec: Codec) -> None:
    expected = [record._replace(timestamp=-1) for record in RECORDS]
    if codec is Codec.LZ4:
        inner = b"".join(message(0, record.offset, record.value) for record in RECORDS)
        frame = bytearray(compress(codec, inner))
        frame[6] ^= 0xA5  # makes the frame header's checksum wrong, as in clients of that time
        data = message(0, 0, bytes(frame), attributes=codec)
        expected = [record._replace(key=None) for record in expected]
    else:
        data = written_by_kafka_python(0, codec, RECORDS)
    assert decode(data if codec is Codec.NONE else at_offset(data, 6)) == expected


def test_log_append_time_of_a_wrapper_applies_to_every_inner_record() -> None:
    inner = b"".join(message(1, number, b"v", timestamp=5) for number in range(3))
    wrapper = message(1, 42, compress(Codec.GZIP, inner), timestamp=77, attributes=Codec.GZIP | LOG_APPEND_TIME)
    assert [(record.offset, record.timestamp) for record in decode(wrapper)] == [(40, 77), (41, 77), (42, 77)]


def test_magic_2_batches_are_read_by_the_same_functions() -> None:
    batch = bytes(build_batch([Record(0, 5, b"k", b"v")]))
    assert not legacy.is_legacy(batch)
    assert decode(batch) == [Record(0, 5, b"k", b"v")]


@pytest.mark.parametrize(
    "data, why",
    [
        (message(1, 3, b"v")[:-1], "cut off"),
        (message(1, 3, b"v")[:-1] + b"w", "checksum"),
        (message(0, 3, None, attributes=Codec.GZIP), "no value"),
        (message(1, 3, compress(Codec.GZIP, b""), attributes=Codec.GZIP), "wraps nothing"),
        (message(1, 3, compress(Codec.GZIP, message(0, 0, b"v")), attributes=Codec.GZIP), "another format"),
        (message(1, 3, compress(Codec.GZIP, bytes(build_batch(RECORDS[:1]))), attributes=Codec.GZIP), "another format"),
        (
            message(
                1,
                3,
                compress(Codec.GZIP, message(1, 0, compress(Codec.GZIP, message(1, 0, b"")), attributes=Codec.GZIP)),
                attributes=Codec.GZIP,
            ),
            "compressed again",
        ),
        (message(1, 3, compress(Codec.GZIP, message(1, 0, b"v")[:-1]), attributes=Codec.GZIP), "cut off"),
        (message(1, 3, b"not gzip", attributes=Codec.GZIP), "cannot be read"),
        (message(1, 3, b"v", attributes=Codec.ZSTD), "attributes"),
        (message(1, -3, b"v"), "offset -3"),
    ],
)
def test_invalid_messages_raise_corrupt_batch_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(CorruptBatch, match=why):
        list(legacy.decode_any_records(data))


def test_a_decompression_bomb_is_refused_at_the_limit() -> None:
    wrapper = message(1, 0, compress(Codec.GZIP, message(1, 0, bytes(1 << 20))), attributes=Codec.GZIP)
    with pytest.raises(CorruptBatch, match="limit"):
        list(legacy.decode_any_records(wrapper, limit=1 << 16))


@given(st.sampled_from([0, 1]), st.sampled_from(CODECS), st.binary(max_size=60), st.data())
@settings(deadline=None, max_examples=150)
def test_damaged_messages_decode_or_raise_corrupt_batch(
    magic: int, codec: Codec, value: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(message(magic, 9, compress(codec, value), attributes=codec))
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    if data.draw(st.booleans()):
        damaged[12:16] = struct.pack(">I", zlib.crc32(damaged[16:]))
    try:
        for record in legacy.decode_any_records(bytes(damaged)):
            assert record.timestamp >= -1
    except CorruptBatch:
        pass
