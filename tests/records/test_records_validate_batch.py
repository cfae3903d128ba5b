"""What a leader refuses from a client, with the error codes of Kafka 4.3.1; deviations are marked."""

from __future__ import annotations

import struct
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.record_strategies import record_lists

from headrace.base.errors import ErrorCode, KafkaError
from headrace.records.batch import (
    CONTROL,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    checksum,
    pack_header,
    read_header,
)
from headrace.records.builder import build_batch
from headrace.records.compression import Codec, compress
from headrace.records.record import Record
from headrace.records.validate_batch import (
    Checked,
    InvalidRecords,
    check_produced_batch,
    needs_thread,
    read_produced_header,
)

NOW = 1_700_000_000_000
GOOD = build_batch([Record(0, NOW + index, b"k%d" % index, b"v") for index in range(3)])
SECTION = bytes(GOOD[61:])


def validate(batch: bytes | bytearray, *, keys: bool = False, span: tuple[int, int] = (0, NOW + 3_600_000)) -> Checked:
    view = memoryview(batch)
    return check_produced_batch(
        view,
        read_produced_header(view),
        max_decompressed_bytes=100_000,
        require_keys=keys,
        timestamp_min=span[0],
        timestamp_max=span[1],
    )


def expect_refusal(batch: bytes | bytearray, *, keys: bool = False) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        validate(batch, keys=keys)
    return caught.value


def with_header(payload: bytes = SECTION, **changes: int) -> bytearray:
    """Return a batch with the right length and checksum, whatever else the header says."""
    header: BatchHeader = read_header(GOOD)._replace(**changes)
    header = header._replace(batch_length=61 + len(payload) - LENGTH_OVERHEAD_BYTES)
    batch = bytearray(pack_header(header) + payload)
    struct.pack_into(">I", batch, 17, checksum(batch, 0, len(batch)))
    return batch


@pytest.mark.parametrize("codec", list(Codec))
def test_valid_batches_are_accepted_with_their_largest_timestamp(codec: Codec) -> None:
    found = [Record(0, NOW + 9, b"k", b"v"), Record(0, NOW + 70, b"k", None), Record(0, NOW, b"", b"")]
    checked = validate(build_batch(found, codec=codec), keys=True)
    assert (checked.max_timestamp, checked.max_timestamp_delta) == (NOW + 70, 1)
    assert bytes(checked.records) == bytes(build_batch(found)[61:])


def test_an_idempotent_batch_is_accepted_with_an_unbounded_timestamp_range() -> None:
    batch = with_header(producer_id=1, producer_epoch=0, base_sequence=0)
    assert validate(batch, span=(NOW - 2**63 - NOW, NOW + 2**63)).max_timestamp == NOW + 2


def test_a_snappy_block_without_framing_is_accepted() -> None:
    assert (
        validate(with_header(bytes(cramjam.snappy.compress_raw(SECTION)), attributes=Codec.SNAPPY)).max_timestamp
        == NOW + 2
    )


@pytest.mark.parametrize(
    ("name", "damage", "code"),
    [
        ("nothing", lambda: b"", ErrorCode.INVALID_RECORD),
        ("a few bytes", lambda: GOOD[:16], ErrorCode.INVALID_RECORD),
        ("half a header", lambda: GOOD[:40], ErrorCode.INVALID_RECORD),
        ("cut off", lambda: GOOD[:-3], ErrorCode.INVALID_RECORD),
        ("two batches", lambda: GOOD + GOOD, ErrorCode.INVALID_RECORD),
        ("magic 1", lambda: GOOD[:16] + b"\x01" + GOOD[17:], ErrorCode.INVALID_RECORD),
        ("length 10", lambda: GOOD[:8] + struct.pack(">i", 10) + GOOD[12:], ErrorCode.CORRUPT_MESSAGE),
        ("length -10", lambda: GOOD[:8] + struct.pack(">i", -10) + GOOD[12:], ErrorCode.CORRUPT_MESSAGE),
        ("wrong checksum", lambda: GOOD[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
        ("one too many", lambda: with_header(record_count=4, last_offset_delta=3), ErrorCode.INVALID_RECORD),
        ("one too few", lambda: with_header(record_count=2, last_offset_delta=1), ErrorCode.INVALID_RECORD),
        ("count and delta", lambda: with_header(last_offset_delta=5), ErrorCode.INVALID_RECORD),
        ("no records", lambda: with_header(b"", record_count=0, last_offset_delta=0), ErrorCode.INVALID_RECORD),
        ("negative delta", lambda: with_header(last_offset_delta=-1), ErrorCode.INVALID_RECORD),
        ("negative count", lambda: with_header(record_count=-1), ErrorCode.INVALID_RECORD),
        ("control batch", lambda: with_header(attributes=CONTROL), ErrorCode.INVALID_RECORD),
        ("no sequence", lambda: with_header(producer_id=5, producer_epoch=0), ErrorCode.INVALID_RECORD),
        ("trailing bytes", lambda: with_header(SECTION + b"x"), ErrorCode.INVALID_RECORD),
        (
            "two LZ4 frames",
            lambda: with_header(compress(Codec.LZ4, SECTION[:10]) + compress(Codec.LZ4, SECTION[10:]), attributes=Codec.LZ4),
            ErrorCode.INVALID_RECORD,
        ),
        # Kafka returns UNKNOWN_SERVER_ERROR for these; our codes say more and are not retriable either.
        ("codec 5", lambda: with_header(attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ("garbage", lambda: with_header(b"garbage", attributes=Codec.GZIP), ErrorCode.INVALID_RECORD),
        ("linked LZ4", lambda: with_header(bytes(cramjam.lz4.compress(SECTION)), attributes=Codec.LZ4), ErrorCode.INVALID_RECORD),
        # Kafka repairs this one on a topic with CreateTime.
        ("LogAppendTime", lambda: with_header(attributes=LOG_APPEND_TIME), ErrorCode.INVALID_TIMESTAMP),
    ],
)  # fmt: skip
def test_invalid_batches_are_refused_with_the_expected_error_code(
    name: str, damage: Callable[[], bytearray], code: ErrorCode
) -> None:
    error = expect_refusal(damage())
    assert error.code == code, name
    assert error.message
    assert getattr(error, "record_errors", []) == []


def test_batches_that_decompress_beyond_the_limit_are_refused() -> None:
    assert (
        expect_refusal(build_batch([Record(0, NOW, b"k", bytes(200_000))], codec=Codec.ZSTD)).code
        == ErrorCode.MESSAGE_TOO_LARGE
    )


def test_invalid_records_are_reported_by_index() -> None:
    batch = build_batch([Record(0, NOW, b"k", b""), Record(0, NOW, None, b""), Record(0, NOW + 10**10, b"k", b"")])
    error = expect_refusal(batch, keys=True)
    assert isinstance(error, InvalidRecords)
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [1, 2]
    error = expect_refusal(
        build_batch([Record(0, NOW, b"k", b""), Record(0, NOW, None, b"")], codec=Codec.GZIP), keys=True
    )
    assert isinstance(error, InvalidRecords)
    assert error.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [1]


def test_the_largest_timestamp_comes_from_the_records_not_from_the_header() -> None:
    assert validate(with_header(max_timestamp=NOW + 10**11)).max_timestamp == NOW + 2


def test_only_large_compressed_batches_need_a_thread() -> None:
    large = [Record(0, NOW, None, noise())]
    assert needs_thread(read_header(build_batch(large, codec=Codec.LZ4)))
    assert not needs_thread(read_header(build_batch(large)))
    assert not needs_thread(read_header(build_batch([Record(0, NOW, None, bytes(100_000))], codec=Codec.LZ4)))


def noise() -> bytes:
    state, out = 1, bytearray()
    while len(out) < 80_000:
        state = state * 6364136223846793005 + 1442695040888963407 & 2**64 - 1
        out += state.to_bytes(8, "big")[:4]
    return bytes(out)


@given(
    record_lists,
    st.sampled_from(Codec),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
    st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_any_input_is_accepted_or_refused_with_a_known_error_code(
    found: list[Record], codec: Codec, changes: list[tuple[int, int]], repair: bool
) -> None:
    batch = build_batch(found, codec=codec)
    for position, byte in changes:
        batch[position % len(batch)] = byte
    if repair:
        struct.pack_into(">I", batch, 17, checksum(batch, 0, len(batch)))
    try:
        validate(batch, keys=bool(len(found) % 2))
    except KafkaError as error:
        assert error.code in (
            ErrorCode.INVALID_RECORD,
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_TIMESTAMP,
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )
