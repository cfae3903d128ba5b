"""The check of batches on the short path accepts only what the full check accepts, and then with the same result."""

from __future__ import annotations

from typing import Any

import pytest
from tests.replication.replication_samples import NOW_MS, make_files, make_partition

from headrace.base.errors import KafkaError
from headrace.records.batch import read_header
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec
from headrace.replication.partition import Partition

DAY_MS = 86_400_000


def build(codec: Codec = Codec.NONE, *, key: bytes | None = b"k", age_ms: int = 0, producer_id: int = -1) -> memoryview:
    builder = BatchBuilder()
    builder.append(NOW_MS - age_ms, key, b"v" * 100)
    epoch = sequence = min(producer_id, 0)
    return memoryview(builder.build(codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))


def checked(partition: Partition, batch: memoryview) -> tuple[Any, int] | None:
    """Return header and largest timestamp if the full check accepts the batch unchanged, otherwise None."""
    header = read_header(batch)
    try:
        result = partition.check(batch, header, NOW_MS)
    except KafkaError:
        return None
    return None if result.converted is not None else (header, result.max_timestamp)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize(
    ("options", "batch_options", "accepted"),
    [
        ({}, {}, True),
        ({}, {"producer_id": 5}, True),
        ({"cleanup_policy": ("compact",)}, {}, True),
        ({"cleanup_policy": ("compact",)}, {"key": None}, False),
        ({"message_timestamp_before_max_ms": DAY_MS}, {"age_ms": DAY_MS}, True),
        ({"message_timestamp_before_max_ms": DAY_MS}, {"age_ms": DAY_MS + 1}, False),
    ],
)
def test_the_simple_check_agrees_with_the_full_check(
    codec: Codec, options: dict[str, Any], batch_options: dict[str, Any], accepted: bool
) -> None:
    partition, batch = make_partition(make_files(), **options), build(codec, **batch_options)
    expected = checked(partition, batch)
    assert (expected is not None) == accepted
    assert simple(partition, batch) == expected


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize(("spare", "accepted"), [(0, True), (-1, False)])
def test_a_batch_may_have_exactly_max_message_bytes(codec: Codec, spare: int, accepted: bool) -> None:
    batch = build(codec)
    partition = make_partition(make_files(), max_message_bytes=len(batch) + spare)
    assert (simple(partition, batch) is not None) == accepted
    assert partition.traffic.bytes_rejected == 0  # counted only by the full check, which reports the error


def simple(partition: Partition, batch: memoryview) -> tuple[Any, int] | None:
    try:
        return partition.checks.check_simple(batch, NOW_MS)
    except KafkaError:
        return None


@pytest.mark.parametrize("topic_codec", ["gzip", "uncompressed"])
def test_batches_that_must_be_converted_are_left_to_the_full_check(topic_codec: str) -> None:
    partition = make_partition(make_files(), compression_type=topic_codec)
    assert simple(partition, build(Codec.LZ4)) is None
    assert (simple(partition, build(Codec.NONE)) is None) == (topic_codec == "gzip")


def test_a_damaged_batch_is_left_to_the_full_check() -> None:
    partition, batch = make_partition(make_files()), build()
    damaged = memoryview(bytearray(batch))
    damaged[-2] ^= 1
    assert simple(partition, batch) is not None and simple(partition, damaged) is None
