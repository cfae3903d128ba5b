"""Batches: ours read by other clients, theirs read by us, and batches emptied by compaction."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.other_clients import AioBatch, AioBuilder, PythonBatch, PythonBuilder
from tests.records.record_strategies import numbered, record_lists

from headrace.records.batch import (
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    CorruptBatch,
    check_crc,
    read_header,
)
from headrace.records.builder import BatchBuilder, build_batch, empty_batch
from headrace.records.compression import Codec, TooLarge
from headrace.records.record import Record, decode_records

NOW = 1_700_000_000_000
SAMPLE = [
    Record(0, NOW + 5, b"key", b"value" * 40, (("trace", b"abc"), ("empty", b""), ("null", None))),
    Record(1, NOW, None, b"", ()),
    Record(2, NOW + 900_000, b"", None, (("ü", b"\xff"),)),
    *(Record(3 + index, NOW + index, b"k%d" % index, b"v" * index) for index in range(300)),
]
# kafka-python supports only gzip out of the box; the other codecs need extra libraries.
READERS = [(AioBatch, codec) for codec in Codec] + [(PythonBatch, codec) for codec in (Codec.NONE, Codec.GZIP)]
WRITERS = [(AioBuilder, codec) for codec in Codec] + [(PythonBuilder, codec) for codec in (Codec.NONE, Codec.GZIP)]


def read_with(reader: type, batch: bytes) -> list[Record]:
    found = reader(batch)
    assert found.validate_crc()
    return [
        Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in found
    ]


@pytest.mark.parametrize(("reader", "codec"), READERS)
def test_other_clients_read_our_batches(reader: type, codec: Codec) -> None:
    batch = bytes(
        build_batch(SAMPLE, codec=codec, producer_id=7, producer_epoch=2, base_sequence=11, transactional=True)
    )
    assert read_with(reader, batch) == SAMPLE
    other = reader(batch)
    assert other.compression_type == codec
    assert (other.producer_id, other.producer_epoch, other.base_sequence) == (7, 2, 11)
    assert other.is_transactional
    assert other.max_timestamp == NOW + 900_000


@pytest.mark.parametrize(("writer", "codec"), WRITERS)
def test_batches_of_other_clients_are_read(writer: type, codec: Codec) -> None:
    builder = writer(
        magic=2, compression_type=int(codec), is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1_000_000,
    )  # fmt: skip
    for record in SAMPLE:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    built = bytes(builder.build())
    assert list(decode_records(built)) == SAMPLE
    if codec is Codec.NONE:
        leader_epoch = read_header(built).leader_epoch
        assert build_batch(SAMPLE, leader_epoch=leader_epoch) == built


@given(record_lists, st.sampled_from(Codec), st.integers(0, 2**62))
@settings(deadline=None, max_examples=50)
def test_built_batches_decode_to_the_same_records(found: list[Record], codec: Codec, base_offset: int) -> None:
    batch = build_batch(found, base_offset=base_offset, codec=codec)
    assert list(decode_records(batch)) == numbered(found, base_offset)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert header.size == len(batch)
    assert header.base_timestamp == found[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in found)
    assert (header.record_count, header.last_offset_delta) == (len(found), len(found) - 1)


def test_build_options_are_written_to_the_batch_header() -> None:
    header = read_header(build_batch(SAMPLE[:2], base_offset=40, control=True, transactional=True, leader_epoch=9))
    assert header.attributes == CONTROL | TRANSACTIONAL
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (40, 9, 42)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)


def test_the_builder_size_equals_the_size_of_the_built_batch() -> None:
    builder = BatchBuilder()
    for record in SAMPLE:
        builder.append(record.timestamp, record.key, record.value, record.headers)
        assert builder.size == len(builder.build())


def test_log_append_time_applies_to_every_record() -> None:
    batch = build_batch(SAMPLE, append_time=NOW + 77)
    assert read_header(batch).attributes == LOG_APPEND_TIME
    assert {record.timestamp for record in decode_records(batch)} == {NOW + 77}


def test_building_an_empty_batch_raises_value_error() -> None:
    with pytest.raises(ValueError, match="record"):
        build_batch([])


def test_an_empty_batch_keeps_the_offsets_and_producer_of_the_original() -> None:
    header = read_header(build_batch(SAMPLE, base_offset=100, codec=Codec.LZ4, producer_id=3, base_sequence=50))
    returned_header, empty = empty_batch(header)
    after = read_header(empty)
    assert returned_header._replace(batch_length=after.batch_length, crc=after.crc) == after
    check_crc(empty, 0, after)
    assert list(decode_records(empty)) == []
    assert (after.size, after.record_count, after.next_offset, after.codec) == (61, 0, 100 + len(SAMPLE), 0)
    assert (after.producer_id, after.last_sequence, after.max_timestamp) == (3, 50 + len(SAMPLE) - 1, NOW + 900_000)


@given(st.binary(min_size=1, max_size=6), st.integers(0, 10_000), st.booleans())
@settings(deadline=None, max_examples=150)
def test_damaged_batches_decode_or_raise_corrupt_batch(noise: bytes, position: int, cut: bool) -> None:
    batch = build_batch(SAMPLE[:6], codec=Codec.NONE)
    position %= len(batch)
    noise = noise[: len(batch) - position]  # keeps the batch at its length
    batch[position : position + len(noise)] = noise
    if cut:
        del batch[position:]
    try:
        for record in decode_records(batch, limit=100_000, verify_crc=False):
            assert isinstance(record, Record)
    except CorruptBatch:
        pass
    if batch != build_batch(SAMPLE[:6]) and position >= 16:
        with pytest.raises(CorruptBatch):
            list(decode_records(batch, limit=100_000))


def test_decoding_more_than_the_limit_raises_too_large() -> None:
    batch = build_batch([Record(0, 0, None, bytes(1_000_000))], codec=Codec.GZIP)
    with pytest.raises(TooLarge):
        list(decode_records(batch, limit=500_000))


@pytest.mark.parametrize(("base_offset", "base_timestamp"), [(2**63 - 1, 0), (0, 2**63 - 1)])
def test_offsets_and_timestamps_beyond_64_bits_raise_corrupt_batch(base_offset: int, base_timestamp: int) -> None:
    builder = BatchBuilder(base_timestamp=0)
    builder.append(0, None, None)
    builder.append(1, None, None)
    builder.base_timestamp = base_timestamp
    with pytest.raises(CorruptBatch):
        list(decode_records(builder.build(base_offset=base_offset)))
