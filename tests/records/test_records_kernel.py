"""The kernel: test vectors, the errors it finds, and equal results from the compiled kernel and its fallback."""

from __future__ import annotations

from struct import pack
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.compiled import compiled
from tests.records.record_strategies import record_lists, section_from, sections

from headrace.records import _kernel_pure, kernel, kernel_types
from headrace.records.batch import read_header
from headrace.records.builder import build_batch
from headrace.records.kernel_types import (
    COUNT_MISMATCH,
    MALFORMED,
    MISSING_KEY,
    OFFSET_NOT_SEQUENTIAL,
    OK,
    RECORD_ERRORS_MAX,
    TIMESTAMP_OUT_OF_RANGE,
    TRAILING_BYTES,
)
from headrace.records.record import Record
from headrace.records.varint import varint, varlong

LOWEST, HIGHEST = -(2**63), 2**63 - 1
MURMUR2 = {
    b"": 275646681,
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.fixture(params=["_kernel", "_kernel_pure"])
def kernel_module(request: pytest.FixtureRequest) -> ModuleType:
    return _kernel_pure if request.param == "_kernel_pure" else compiled("_kernel")


@pytest.fixture(scope="module")
def compiled_kernel() -> ModuleType:
    return compiled("_kernel")


def record(
    offset_delta: int, *, timestamp: int = 0, key: bytes = b"\x02k", value: bytes = b"\x02v", rest: bytes = b"\x00"
) -> bytes:
    body = b"\x00" + varlong(timestamp) + varint(offset_delta) + key + value + rest
    return varint(len(body)) + body


def check(
    module: ModuleType,
    section: bytes,
    count: int,
    *,
    base: int = 100,
    keys: bool = False,
    span: tuple[int, int] = (0, 999),
) -> kernel_types.ValidationResult:
    found: kernel_types.ValidationResult = module.validate_records(section, count, base, keys, *span)
    return found


def test_the_compiled_kernel_is_used_when_it_is_built() -> None:
    assert compiled("_kernel").validate_records is kernel.validate_records
    assert compiled("_decode").decode_columns is kernel.decode_columns
    assert kernel.COMPILED


def test_murmur2_and_partitioning_match_the_test_vectors(kernel_module: ModuleType) -> None:
    for key, expected in MURMUR2.items():
        assert kernel_module.murmur2(key) == expected
        assert kernel_module.murmur2(memoryview(bytearray(key))) == expected
        for partitions in (1, 7, 50, 2**31 - 1):
            assert kernel_module.partition_for_key(key, partitions) == (expected & 0x7FFFFFFF) % partitions
    for partitions in (0, -1):
        with pytest.raises(ValueError, match="partition"):
            kernel_module.partition_for_key(b"", partitions)


@given(st.binary(max_size=60), st.integers(1, 2**31 - 1))
@settings(deadline=None)
def test_compiled_and_fallback_hashes_agree(compiled_kernel: ModuleType, key: bytes, partitions: int) -> None:
    assert compiled_kernel.murmur2(key) == _kernel_pure.murmur2(key)
    assert compiled_kernel.partition_for_key(key, partitions) == _kernel_pure.partition_for_key(key, partitions)


def test_valid_records_are_accepted_with_their_largest_timestamp(kernel_module: ModuleType) -> None:
    section = (
        record(0, timestamp=5)
        + record(1, timestamp=30)
        + record(2, timestamp=30)
        + record(3, key=b"\x01", value=b"\x01")
    )
    assert check(kernel_module, section, 4) == (OK, -1, 130, 1, ())
    assert check(kernel_module, b"", 0) == (OK, -1, -1, -1, ())


def test_a_record_without_a_timestamp_is_valid_in_any_timestamp_range(kernel_module: ModuleType) -> None:
    assert check(kernel_module, record(0, timestamp=0), 1, base=-1, span=(500, 600)) == (OK, -1, -1, -1, ())


def test_structural_errors_are_reported_with_the_index_of_the_record(kernel_module: ModuleType) -> None:
    two = record(0) + record(1)
    assert check(kernel_module, two, 3)[:2] == (COUNT_MISMATCH, 2)
    assert check(kernel_module, two, 1)[:2] == (TRAILING_BYTES, 1)
    assert check(kernel_module, two + b"\x00", 2)[:2] == (TRAILING_BYTES, 2)
    assert check(kernel_module, two[:-1], 2)[:2] == (MALFORMED, 1)
    assert check(kernel_module, record(0) + record(2), 2)[:2] == (OFFSET_NOT_SEQUENTIAL, 1)
    assert check(kernel_module, record(1), 1)[:2] == (OFFSET_NOT_SEQUENTIAL, 0)
    assert check(kernel_module, b"", 1)[:2] == (COUNT_MISMATCH, 0)


@pytest.mark.parametrize(
    "bad",
    [
        record(0, rest=b"\x00\x00"),  # longer than its fields
        record(0, rest=b""),  # shorter than its fields
        record(0, rest=b"\x01"),  # -1 headers
        record(0, rest=b"\x02"),  # a missing header
        record(0, rest=b"\x02\x01\x01"),  # a header without a key
        record(0, rest=b"\xfe\xff\xff\xff\x0f"),  # 2^31-1 headers
        record(0, key=b"\xfe\xff\xff\xff\x0f"),  # a key of 2 GiB
        record(0, value=b"\x08ab"),  # a value that extends beyond the record
        record(0, key=b"\x80\x80\x80\x80\x10"),  # a varint of 33 bits
        record(0, key=b"\x80\x80\x80\x80\x80\x00"),  # a varint of six bytes
        b"\x00",
        b"\x01",
        b"\xff\xff\xff\xff\x0f",
        b"\x80",
    ],
)
def test_records_with_invalid_fields_are_malformed(kernel_module: ModuleType, bad: bytes) -> None:
    assert check(kernel_module, bad, 1) == (MALFORMED, 0, -1, -1, ())


def test_missing_keys_and_timestamps_out_of_range_are_reported_per_record(kernel_module: ModuleType) -> None:
    null = b"\x01"
    section = record(0) + record(1, key=null) + record(2, timestamp=5000) + record(3, key=null, timestamp=5000)
    assert check(kernel_module, section, 4, span=(0, 9999)) == (OK, -1, 5100, 2, ())
    assert check(kernel_module, section, 4, keys=True, span=(0, 9999)) == (
        MISSING_KEY,
        1,
        5100,
        2,
        ((1, MISSING_KEY), (3, MISSING_KEY)),
    )
    assert check(kernel_module, section, 4, keys=True) == (
        TIMESTAMP_OUT_OF_RANGE,
        1,
        100,
        0,
        ((1, MISSING_KEY), (2, TIMESTAMP_OUT_OF_RANGE), (3, MISSING_KEY)),
    )
    # A broken structure takes precedence over errors in earlier records.
    assert check(kernel_module, section + b"x", 4, keys=True)[::4] == (TRAILING_BYTES, ())


def test_at_most_record_errors_max_records_are_reported(kernel_module: ModuleType) -> None:
    section = b"".join(record(index, key=b"\x01") for index in range(100))
    status, index, _, _, errors = check(kernel_module, section, 100, keys=True)
    assert (status, index, len(errors)) == (MISSING_KEY, 0, RECORD_ERRORS_MAX)


def test_timestamps_beyond_64_bits_are_out_of_range(kernel_module: ModuleType) -> None:
    whole = (LOWEST, HIGHEST)
    assert check(kernel_module, record(0, timestamp=1), 1, base=HIGHEST, span=whole)[0] == TIMESTAMP_OUT_OF_RANGE
    assert check(kernel_module, record(0, timestamp=-1), 1, base=LOWEST, span=whole)[0] == TIMESTAMP_OUT_OF_RANGE
    assert check(kernel_module, record(0, timestamp=HIGHEST), 1, base=0, span=whole) == (OK, -1, HIGHEST, 0, ())


@given(sections, st.booleans(), st.integers(LOWEST, HIGHEST), st.integers(LOWEST, HIGHEST))
@settings(deadline=None, max_examples=400)
def test_compiled_and_fallback_validation_agree_on_any_input(
    compiled_kernel: ModuleType, found: tuple[bytes, int, int], keys: bool, lowest: int, highest: int
) -> None:
    section, count, base = found
    expected = _kernel_pure.validate_records(section, count, base, keys, lowest, highest)
    # An exact copy in separate memory, so that memory checkers can detect a read beyond the end.
    assert compiled_kernel.validate_records(bytearray(section), count, base, keys, lowest, highest) == expected


@given(record_lists)
@settings(deadline=None, max_examples=50)
def test_sections_from_the_batch_builder_are_valid(found: list[Record]) -> None:
    section, base = section_from(found)
    largest = max(entry.timestamp for entry in found)
    first = next((index for index, entry in enumerate(found) if entry.timestamp == largest), -1) if largest > -1 else -1
    for module in (_kernel_pure, kernel):
        result = module.validate_records(section, len(found), base, False, LOWEST, HIGHEST)
        assert result == (OK, -1, largest, first, ())


@settings(deadline=None, max_examples=300)
@given(
    record_lists,
    st.sampled_from([(-1, -1, -1), (7, 0, 0), (7, 0, -1)]),
    st.lists(st.tuples(st.integers(0, 120), st.binary(min_size=1, max_size=4)), max_size=2),
    st.booleans(),
)
def test_compiled_and_fallback_inspect_plain_batches_alike(
    compiled_kernel: ModuleType,
    found: list[Record],
    producer: tuple[int, int, int],
    damage: list[tuple[int, bytes]],
    require_keys: bool,
) -> None:
    producer_id, epoch, sequence = producer
    records = found or [Record(0, 5, b"k", b"v")]
    batch = build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    for place, noise in damage:
        batch[place : place + len(noise)] = noise
    for candidate in (batch, batch[: len(batch) // 2]):
        got = compiled_kernel.inspect_plain_batch(candidate, require_keys, LOWEST, HIGHEST)
        assert got == _kernel_pure.inspect_plain_batch(candidate, require_keys, LOWEST, HIGHEST)
        if got is not None:
            assert got[0] == tuple(read_header(candidate))


def unsigned_varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + unsigned_varint(value >> 7)


PRODUCE_FRAMES = st.builds(
    lambda version, client, transactional, acks, name, topics, partitions, size, records, tags: (
        pack(">hhih", 0, version, 7, len(client) if client is not None else -1)
        + (client or b"")
        + b"\x00"
        + transactional
        + pack(">hiB", acks, 1000, topics)
        + (name if version == 13 else bytes([len(name) + 1]) + name)
        + pack(">Bi", partitions, 3)
        + size(len(records) + 1)
        + records
        + tags
    ),
    st.integers(8, 14),
    st.sampled_from([None, b"", b"client"]),
    st.sampled_from([b"\x00", b"\x00", b"\x02t"]),
    st.sampled_from([1, 1, -1, 0, 2]),
    st.one_of(st.binary(min_size=16, max_size=16), st.binary(max_size=130)).filter(lambda name: len(name) < 255),
    st.sampled_from([2, 2, 1, 3]),
    st.sampled_from([2, 2, 1, 3]),
    st.sampled_from([unsigned_varint, unsigned_varint, lambda size: b"\x80\x80\x80\x80\x80\x01"]),
    st.binary(max_size=200),
    st.sampled_from([b"\0\0\0", b"\0\0\0", b"\0\0", b"\0\1\0", b"\0\0\0\0"]),
)


@settings(deadline=None, max_examples=400)
@given(PRODUCE_FRAMES, st.integers(0, 40), st.binary(max_size=3))
def test_compiled_and_fallback_split_produce_requests_alike(
    compiled_kernel: ModuleType, frame: bytes, place: int, noise: bytes
) -> None:
    for candidate in (frame, frame[: -1 - place], frame[:place] + noise + frame[place + len(noise) :]):
        assert compiled_kernel.split_single_produce(candidate) == _kernel_pure.split_single_produce(candidate)


def test_a_produce_request_for_one_partition_is_split_into_its_fields(kernel_module: ModuleType) -> None:
    head = pack(">hhih", 0, 9, 7, 2) + b"me" + pack(">BBhiB", 0, 0, -1, 1000, 2) + b"\x06topic" + pack(">Bi", 2, 3)
    frame = head + b"\x05" + b"four" + b"\0\0\0"
    assert kernel_module.split_single_produce(frame) == (
        9,
        7,
        -1,
        1000,
        b"\x06topic\x02\0\0\0\x03",
        len(head) + 1,
        len(frame) - 3,
    )
    assert kernel_module.split_single_produce(frame[:-1]) is None
    assert kernel_module.split_single_produce(b"") is None
