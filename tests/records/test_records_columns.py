"""Batches to Arrow and back, and the compiled column code compared with its fallback."""

from __future__ import annotations

from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.compiled import compiled
from tests.records.record_strategies import numbered, record_lists, sections

from headrace.records import _columns_pure, _decode_pure
from headrace.records.batch import CorruptBatch, read_header
from headrace.records.builder import build_batch
from headrace.records.columns import (
    decode_batches,
    each_headers,
    encode_batches,
    keys_and_values,
    partitions_of,
    section_of,
)
from headrace.records.compression import Codec, TooLarge
from headrace.records.control import TransactionMarker, build_marker
from headrace.records.kernel import decode_columns, murmur2
from headrace.records.kernel_types import HEADERS_COLUMN, BinaryColumn, HeaderColumn, MalformedSection, Section
from headrace.records.record import Record, decode_records

NOW = 1_700_000_000_000
INT64_RANGE = (-(2**63), 2**63 - 1)
WITH_HEADERS = ("offset", "timestamp", "key", "value", "headers")


@pytest.fixture(scope="module")
def compiled_columns() -> ModuleType:
    return compiled("_columns")


@pytest.fixture(scope="module")
def compiled_decoder() -> ModuleType:
    return compiled("_decode")


def as_records(rows: pa.RecordBatch) -> list[Record]:
    rows.validate(full=True)
    headers = rows.column("headers").to_pylist()
    return [
        Record(offset, timestamp, key, value, tuple((entry["key"], entry["value"]) for entry in entries))
        for offset, timestamp, key, value, entries in zip(
            rows.column("offset").to_pylist(),
            rows.column("timestamp").cast(pa.int64()).to_pylist(),
            rows.column("key").to_pylist(),
            rows.column("value").to_pylist(),
            headers,
            strict=True,
        )
    ]


@given(st.lists(record_lists, max_size=3), st.sampled_from(Codec))
@settings(deadline=None, max_examples=40)
def test_batches_round_trip_through_arrow_rows(found: list[list[Record]], codec: Codec) -> None:
    expected: list[Record] = []
    batches = bytearray()
    base_offset = 0
    for part in found:
        batches += build_batch(part, base_offset=base_offset, codec=codec)
        expected += numbered(part, base_offset)
        base_offset += len(part)
    rows = decode_batches(batches, columns=WITH_HEADERS)
    assert as_records(rows) == expected
    again: list[Record] = []
    for encoded in encode_batches(rows, batch_bytes_max=5000, now_ms=NOW, codec=codec):
        part = list(decode_records(encoded.batch))
        assert encoded.rows == len(part)
        again += part
    assert numbered(again) == expected


def test_encoded_rows_equal_the_batch_builders_bytes() -> None:
    found = [Record(index, NOW + index % 7, b"k%d" % index, b"v" * index, (("h", None),)) for index in range(50)]
    built = build_batch(found, producer_id=4, producer_epoch=1, base_sequence=9, transactional=True)
    rows = decode_batches(built, columns=WITH_HEADERS)
    (encoded,) = encode_batches(
        rows, batch_bytes_max=10**6, now_ms=0, producer_id=4, producer_epoch=1, base_sequence=9, transactional=True
    )
    assert encoded.batch == built


def test_decoding_returns_only_rows_in_the_requested_offset_range() -> None:
    batches = build_batch([Record(0, NOW, None, b"%d" % index) for index in range(10)])
    batches += build_batch([Record(0, NOW, None, b"%d" % index) for index in range(10, 20)], base_offset=10)
    rows = decode_batches(batches, start_offset=4, end_offset=13)
    assert rows.column("offset").to_pylist() == list(range(4, 13))
    assert rows.schema.names == ["offset", "timestamp", "key", "value"]
    assert decode_batches(batches, start_offset=20).num_rows == 0
    assert decode_batches(b"", columns=WITH_HEADERS).num_rows == 0


def test_control_batches_and_a_partial_last_batch_are_skipped() -> None:
    marker = build_marker(TransactionMarker(True, 0), producer_id=1, producer_epoch=0, timestamp=NOW, base_offset=1)
    data = build_batch([Record(0, NOW, b"k", b"v")])
    assert decode_batches(data + marker + data[:-1]).column("value").to_pylist() == [b"v"]


def test_log_append_time_is_the_timestamp_of_every_row_of_its_batch() -> None:
    batches = build_batch([Record(0, 5, None, None), Record(0, 9, None, None)], append_time=NOW)
    batches += build_batch([Record(0, 5, None, None)])
    rows = decode_batches(batches, columns=("timestamp", "timestamp_type"))
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [NOW, NOW, 5]
    assert rows.column("timestamp_type").to_pylist() == [1, 1, 0]


def test_decoding_returns_the_requested_columns_in_the_requested_order() -> None:
    batch = build_batch([Record(0, NOW, b"k%d" % index, None if index % 3 else b"v") for index in range(20)])
    rows = decode_batches(batch, columns=("value", "offset"))
    rows.validate(full=True)
    assert rows.schema.names == ["value", "offset"]
    assert rows.column("value").to_pylist() == [None if index % 3 else b"v" for index in range(20)]
    assert decode_batches(batch, columns=("key",)).column("key").null_count == 0
    assert decode_batches(batch, columns=()).num_columns == 0
    with pytest.raises(ValueError, match="'valu' is no column of records; there are offset, timestamp"):
        decode_batches(batch, columns=("valu",))


def test_timestamps_in_microseconds_are_capped_at_the_64_bit_maximum() -> None:
    batch = build_batch([Record(0, NOW, None, None), Record(0, -1, None, None), Record(0, 2**62, None, None)])
    rows = decode_batches(batch, columns=("timestamp",), timestamp_unit="us")
    assert rows.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [NOW * 1000, -1000, 2**63 - 1]


def test_records_with_thousands_of_headers_are_decoded(compiled_decoder: ModuleType) -> None:
    for count in (0, 1, 50, 3, 4000):
        headers = tuple((f"h{index}", b"v" * (index % 70)) for index in range(count))
        section = section_of(batch := build_batch([Record(0, NOW, None, b"v", headers)] * 3), read_header(batch))
        columns = compiled_decoder.decode_columns([section], HEADERS_COLUMN, 0, 2**63 - 1)
        assert each_headers(columns.headers, columns.rows) == [headers] * 3


@given(record_lists)
@settings(deadline=None, max_examples=40)
def test_each_row_gets_its_own_headers(found: list[Record]) -> None:
    if found:
        section = section_of(batch := build_batch(found), read_header(batch))
        columns = decode_columns([section], HEADERS_COLUMN, 0, 2**63 - 1)
        assert each_headers(columns.headers, columns.rows) == [record.headers for record in found]


def test_the_decoding_limit_applies_to_all_batches_together() -> None:
    one = build_batch([Record(0, NOW, None, bytes(100_000))], codec=Codec.ZSTD)
    assert decode_batches(one * 3, limit=400_000).num_rows == 3
    with pytest.raises(TooLarge):
        decode_batches(one * 5, limit=400_000)


def test_damaged_batches_raise_corrupt_batch_or_malformed_section() -> None:
    batch = build_batch([Record(0, NOW, b"key", b"value")])
    batch[-3] ^= 1
    with pytest.raises(CorruptBatch):
        decode_batches(batch)
    batch = build_batch([Record(0, NOW, b"key", b"value")])
    batch[60] = 2
    with pytest.raises(MalformedSection):
        decode_batches(batch, verify_crc=False)


def test_invalid_utf8_in_header_keys_is_replaced() -> None:
    batch = build_batch([Record(0, NOW, None, None, (("abc", b"x"),))])
    batch[batch.index(b"abc")] = 0xFF
    rows = decode_batches(batch, columns=WITH_HEADERS, verify_crc=False)
    assert rows.column("headers").to_pylist() == [[{"key": "\ufffdbc", "value": b"x"}]]


def test_buffers_are_not_reused_while_a_view_of_them_exists(compiled_decoder: ModuleType) -> None:
    size = 1_000_000
    views = [compiled_decoder.reusable(size) for _ in range(3)]
    for number, view in enumerate(views):
        view[:] = bytes([number]) * size
    parts = [view[-3:] for view in views]
    del view, views
    for _ in range(10):
        compiled_decoder.reusable(size)[:] = b"x" * size
    assert [bytes(part) for part in parts] == [bytes([number]) * 3 for number in range(3)]
    assert len(compiled_decoder.reusable(1 << 28)) == 1 << 28  # larger than any buffer that is kept
    assert len(compiled_decoder.reusable(7)) == 7


def test_later_decodes_do_not_overwrite_rows_that_are_still_held() -> None:
    def batches(byte: bytes) -> bytearray:
        return build_batch([Record(0, NOW, byte, byte * 1000) for _ in range(2000)])

    held = [decode_batches(batches(byte)).slice(1999) for byte in (b"a", b"b")]
    for _ in range(10):
        decode_batches(batches(b"x"))
    assert [rows["value"].to_pylist() for rows in held] == [[b"a" * 1000], [b"b" * 1000]]
    assert [rows["offset"].to_pylist() for rows in held] == [[1999], [1999]]


def test_string_large_binary_and_microsecond_columns_are_encoded() -> None:
    table = pa.record_batch(
        {
            "key": pa.array(["a", None, "c", "d"]),
            "value": pa.array([b"1", b"2", None, b"4"], pa.large_binary()),
            "timestamp": pa.array([NOW * 1000, None, NOW * 1000 + 5000, NOW * 1000], pa.timestamp("us", "UTC")),
            "headers": pa.array(
                [[("x", b"1")], None, [], [("y", None), ("z", b"")]],
                pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())])),
            ),
        }
    )
    for start, count in ((0, 4), (1, 3), (2, 1), (3, 1)):
        (encoded,) = encode_batches(table.slice(start, count), batch_bytes_max=10**6, now_ms=77)
        expected = [
            Record(0, NOW, b"a", b"1", (("x", b"1"),)),
            Record(0, 77, None, b"2", ()),
            Record(0, NOW + 5, b"c", None, ()),
            Record(0, NOW, b"d", b"4", (("y", None), ("z", b""))),
        ]
        assert list(decode_records(encoded.batch)) == numbered(expected[start : start + count])


def test_rows_without_keys_and_timestamps_get_null_keys_and_the_current_time() -> None:
    table = pa.record_batch({"value": pa.array([b"1", b"2"])})
    (encoded,) = encode_batches(table, batch_bytes_max=10**6, now_ms=77)
    assert list(decode_records(encoded.batch)) == [Record(0, 77, None, b"1"), Record(1, 77, None, b"2")]
    assert partitions_of(table, 4).to_pylist() == [None, None]
    assert list(encode_batches(table.slice(0, 0), batch_bytes_max=10**6, now_ms=77)) == []


def test_rows_are_split_at_the_size_limit_with_consecutive_sequences() -> None:
    table = pa.record_batch({"value": pa.array([bytes(300)] * 10 + [bytes(5000)])})
    encoded = list(
        encode_batches(table, batch_bytes_max=1000, now_ms=1, producer_id=1, producer_epoch=0, base_sequence=2**31 - 3)
    )
    assert [part.rows for part in encoded] == [3, 3, 3, 1, 1]
    assert all(len(part.batch) <= 1000 for part in encoded[:-1])
    headers = [read_header(part.batch) for part in encoded]
    assert [header.base_sequence for header in headers] == [2**31 - 3, 0, 3, 6, 7]


def test_rows_are_partitioned_by_the_murmur2_hash_of_their_key() -> None:
    keys = [b"foobar", None, b"", b"21", b"abc"]
    table = pa.record_batch({"key": pa.array(keys, pa.binary())})
    expected = [None if key is None else (murmur2(key) & 0x7FFFFFFF) % 5 for key in keys]
    assert partitions_of(table, 5).to_pylist() == expected
    assert partitions_of(table.slice(2), 5).to_pylist() == expected[2:]


@given(
    st.lists(st.tuples(sections, st.integers(*INT64_RANGE), st.none() | st.integers(*INT64_RANGE)), max_size=3),
    st.integers(0, 63),
    st.integers(*INT64_RANGE),
    st.integers(*INT64_RANGE),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_compiled_and_fallback_decoding_agree_on_any_input(
    compiled_decoder: ModuleType,
    found: list[tuple[tuple[bytes, int, int], int, int | None]],
    wanted: int,
    start: int,
    end: int,
    microseconds: bool,
    everything: bool,
) -> None:
    given = [
        Section(bytearray(records), count, base_offset % 2**40 if everything else base_offset, base, append_time)
        for (records, count, base), base_offset, append_time in found
    ]
    if everything:
        start, end = 0, 2**63 - 1
    arguments = (given, wanted, start, end, microseconds)
    assert outcome(compiled_decoder.decode_columns, *arguments) == outcome(_decode_pure.decode_columns, *arguments)


@given(
    st.lists(record_lists, max_size=3),
    st.sampled_from(Codec),
    st.binary(max_size=70),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
)
@settings(deadline=None, max_examples=150)
def test_compiled_and_fallback_scanning_agree_on_any_input(
    compiled_decoder: ModuleType, found: list[list[Record]], codec: Codec, tail: bytes, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(b"".join(build_batch(part, codec=codec, base_offset=7) for part in found) + tail)
    for position, byte in changes:
        if data:
            data[position % len(data)] = byte
    assert compiled_decoder.scan_batches(data) == _decode_pure.scan_batches(data)


def outcome(call: object, *arguments: object) -> object:
    try:
        return call(*arguments)  # type: ignore[operator]
    except (CorruptBatch, ValueError) as error:
        return type(error), str(error)


def little(numbers: list[int], size: int) -> bytes:
    return b"".join((number % 2 ** (8 * size)).to_bytes(size, "little") for number in numbers)


offset_lists = st.lists(st.integers(0, 20), max_size=6).map(sorted) | st.lists(st.integers(-3, 30), max_size=6)
offset_buffers = st.builds(lambda numbers, odd: little(numbers, 4) + odd, offset_lists, st.binary(max_size=3))
binary_columns = st.builds(
    BinaryColumn, st.none() | st.binary(max_size=2), offset_buffers, st.binary(max_size=24), st.just(0)
)
header_columns = st.builds(
    HeaderColumn, st.none() | st.binary(max_size=2), offset_buffers, binary_columns, binary_columns
)
timestamp_buffers = st.lists(st.integers(*INT64_RANGE) | st.integers(-5, 50), max_size=6).map(
    lambda numbers: little(numbers, 8)
)


@given(
    st.integers(-2, 6),
    st.integers(-1, 6),
    st.none() | timestamp_buffers,
    st.integers(*INT64_RANGE) | st.integers(0, 9),
    st.none() | binary_columns,
    st.none() | binary_columns,
    st.none() | header_columns,
    st.integers(-5, 100),
)
@settings(deadline=None, max_examples=500)
def test_compiled_and_fallback_encoding_agree_on_any_input(
    compiled_columns: ModuleType,
    start: int,
    count: int,
    timestamps: bytes | None,
    base: int,
    keys: BinaryColumn | None,
    values: BinaryColumn | None,
    headers: HeaderColumn | None,
    bytes_max: int,
) -> None:
    arguments = (start, count, timestamps, base, keys, values, headers, bytes_max)
    assert outcome(compiled_columns.encode_columns, *arguments) == outcome(_columns_pure.encode_columns, *arguments)


@given(binary_columns, st.integers(-2, 6), st.integers(-2, 6), st.integers(-1, 9))
@settings(deadline=None, max_examples=200)
def test_compiled_and_fallback_partitioning_agree_on_any_input(
    compiled_columns: ModuleType, keys: BinaryColumn, start: int, count: int, partitions: int
) -> None:
    arguments = (keys, start, count, partitions)
    assert outcome(compiled_columns.partitions_for_keys, *arguments) == outcome(
        _columns_pure.partitions_for_keys, *arguments
    )


@settings(deadline=None, max_examples=100)
@given(record_lists.filter(bool), st.sampled_from([Codec.NONE, Codec.ZSTD]))
def test_keys_and_values_match_the_decoded_records(records: list[Record], codec: Codec) -> None:
    batch = bytes(build_batch(records, codec=codec))
    found = list(keys_and_values(batch, read_header(batch)))
    assert found == [(record.key, record.value) for record in decode_records(batch)]


def test_keys_and_values_of_a_damaged_batch_raise_corrupt_batch() -> None:
    batch = build_batch([Record(0, NOW, b"key", b"value")])
    batch[-2] ^= 1
    with pytest.raises(CorruptBatch):
        keys_and_values(batch, read_header(batch))
