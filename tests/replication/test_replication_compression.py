"""compression.type: a batch in another codec than the topic's is recompressed, and readers see no other difference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replication.replication_samples import NOW_MS, make_files, make_partition

from headrace.base.errors import ErrorCode, KafkaError
from headrace.records.batch import CODEC_MASK, HEADER_BYTES, check_crc, read_header
from headrace.records.builder import build_batch
from headrace.records.compression import Codec
from headrace.records.recompress import TARGETS, recompress
from headrace.records.record import Record, decode_records
from headrace.records.validate_batch import THREAD_BYTES_MIN

RECORDS = [
    Record(number, NOW_MS + number, b"key %d" % number, b"value" * number, (("h", b"x"),)) for number in range(9)
]


def produce(partition: Any, batch: bytearray) -> bytes:
    header = read_header(batch)
    checked = partition.check(memoryview(batch), header, NOW_MS)
    records, header = checked.converted or (memoryview(batch), header)
    partition.append(records, header, checked.max_timestamp, NOW_MS)
    plan = partition.plan_read(0, 10**6, committed_only=False, last_fetched_epoch=-1, min_one=True)
    return bytes(plan.range.read())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", Codec)
def test_stored_batches_have_the_codec_of_the_topic(source: Codec, target: str) -> None:
    partition = make_partition(make_files(), compression_type=target)
    sent = bytearray(build_batch(RECORDS, codec=source, producer_id=7, producer_epoch=1, base_sequence=5))
    before = read_header(sent)
    stored = produce(partition, sent)
    header = read_header(stored)
    check_crc(stored, 0, header)
    assert header.size == len(stored)
    assert header.attributes & CODEC_MASK == (source if TARGETS[target] is None else TARGETS[target])
    kept = ("producer_id", "producer_epoch", "base_sequence", "record_count", "base_timestamp", "max_timestamp")
    assert [getattr(header, name) for name in kept] == [getattr(before, name) for name in kept]
    assert [(one.key, one.value, one.timestamp) for one in decode_records(stored)] == [
        (one.key, one.value, one.timestamp) for one in RECORDS
    ]


def test_batches_already_in_the_topics_codec_are_not_recompressed() -> None:
    partition = make_partition(make_files(), compression_type="zstd", compression_zstd_level=19)
    batch = build_batch(RECORDS, codec=Codec.ZSTD)
    assert partition.check(memoryview(bytearray(batch)), read_header(batch), NOW_MS).converted is None


def test_recompression_uses_the_topics_compression_level() -> None:
    large = [Record(0, NOW_MS, None, b"".join(b"%d," % (number * 7919 % 10007) for number in range(8000)))]
    batch = build_batch(large)
    sizes: list[int] = []
    for level in (1, 9):
        partition = make_partition(make_files(), compression_type="gzip", compression_gzip_level=level)
        sizes.append(len(produce(partition, bytearray(batch))))
    assert sizes[1] < sizes[0] < len(batch)


def test_a_batch_that_recompression_makes_too_large_is_refused() -> None:
    batch = build_batch([Record(0, NOW_MS, None, bytes(50_000))], codec=Codec.ZSTD)
    partition = make_partition(make_files(), compression_type="uncompressed", max_message_bytes=10_000)
    with pytest.raises(KafkaError) as caught:
        partition.check(memoryview(bytearray(batch)), read_header(batch), NOW_MS)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_compressing_topic_needs_a_thread_for_large_batches() -> None:
    large = read_header(build_batch([Record(0, NOW_MS, None, bytes(THREAD_BYTES_MIN))]))
    converting = make_partition(make_files(), compression_type="lz4")
    assert converting.checks.compresses and converting.checks.needs_thread(large)
    plain = make_partition(make_files(), compression_type="uncompressed")
    assert not plain.checks.compresses and not plain.checks.needs_thread(large)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(list(Codec)), st.binary(max_size=3000))
def test_recompressed_batches_keep_their_records(codec: Codec, value: bytes) -> None:
    batch = build_batch([Record(0, NOW_MS, None, value)])
    wrapped, header = recompress(read_header(batch), batch[HEADER_BYTES:], codec, None)
    check_crc(wrapped, 0, header)
    (record,) = decode_records(bytes(wrapped))
    assert record.value == value
