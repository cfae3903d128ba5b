"""Fetched batches as rows and records: only readable records, each once, with positions that skip everything else."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.decoding import ALL_COLUMNS, RECORD_SHAPE, FetchedBatches, Shape
from headrace.client.consumer.fetching import FetchedPartition
from headrace.records.batch import HEADER_BYTES
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec
from headrace.records.control import TransactionMarker, build_marker

HERE = TopicPartition("orders", 3)
NOW = 1_700_000_000_000
EVERYTHING = 2**31
ABORTED, COMMITTED = 7, 8


def fetched(data: bytes | bytearray, offset: int = 0, aborted: list[tuple[int, int]] | None = None) -> FetchedPartition:
    return FetchedPartition(HERE, offset, memoryview(bytes(data)), 1000, 1000, 0, aborted or [], ErrorCode.NONE)


def batch(first: int, values: list[bytes], *, codec: Codec = Codec.NONE, epoch: int = 0, gap: int = 0) -> bytearray:
    """Build a batch whose last `gap` offsets have no record, as after compaction."""
    builder = BatchBuilder()
    for index, value in enumerate(values):
        builder.append(NOW + index, b"k", value, (("h", b"x"),) if index % 2 else ())
    return builder.build(base_offset=first, codec=codec, leader_epoch=epoch, last_offset_delta=len(values) - 1 + gap)


class DrawnLog(NamedTuple):
    data: bytes
    readable: list[tuple[int, bytes]]
    aborted: list[tuple[int, int]]
    end: int


@st.composite
def logs(draw: st.DrawFn) -> DrawnLog:
    """Draw a log of plain, compressed and compacted batches, markers, and transactions of which some are aborted."""
    data = bytearray()
    readable: list[tuple[int, bytes]] = []
    aborted: list[tuple[int, int]] = []
    offset = draw(st.integers(0, 5))
    is_open: dict[int, bool] = {}
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(["plain", "plain", "transactional", "marker", "empty"]))
        count = draw(st.integers(1, 4))
        values = [b"%d" % (offset + index) for index in range(count)]
        producer = draw(st.sampled_from([ABORTED, COMMITTED]))
        if kind == "plain":
            gap = draw(st.integers(0, 3))
            data += batch(offset, values, codec=draw(st.sampled_from(Codec)), gap=gap)
            readable += enumerate(values, offset)
            offset += count + gap
        elif kind == "transactional":
            builder = BatchBuilder()
            for value in values:
                builder.append(NOW, None, value)
            data += builder.build(base_offset=offset, producer_id=producer, producer_epoch=0, transactional=True)
            if producer == ABORTED and not is_open.get(producer):
                aborted.append((producer, offset))
            is_open[producer] = True
            readable += enumerate(values, offset) if producer == COMMITTED else ()
            offset += count
        elif kind == "marker":
            marker = TransactionMarker(producer == COMMITTED, 0)
            data += build_marker(marker, producer_id=producer, producer_epoch=0, timestamp=NOW, base_offset=offset)
            is_open[producer] = False
            offset += 1
        else:
            builder = BatchBuilder()
            data += builder.build(base_offset=offset, last_offset_delta=count - 1)
            offset += count
    return DrawnLog(bytes(data), readable, aborted, offset)


@given(logs(), st.data(), st.integers(1, 5))
@settings(deadline=None, max_examples=100)
def test_readable_records_are_returned_once_and_in_order(log: DrawnLog, data: st.DataObject, rows_max: int) -> None:
    start = data.draw(st.integers(0, log.end - 1))
    end = data.draw(st.just(EVERYTHING) | st.integers(start + 1, log.end + 2))
    method = data.draw(st.sampled_from(["rows", "records", "mixed"]))
    batches = FetchedBatches(fetched(log.data, start, log.aborted), end_offset=end)
    assert batches.next_offset == min(log.end, end)
    found: list[tuple[int, bytes]] = []
    turn = 0
    while not batches.is_spent:
        turn += 1
        before = batches.position
        if method == "records" or (method == "mixed" and turn % 2):
            some = [(record.offset, record.value) for record in batches.take_records(rows_max)]
        else:
            rows = batches.take_batch(Shape(("value", "offset")), rows_max)
            some = [] if rows is None else list(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True))
        assert len(some) <= rows_max and batches.position > before
        assert all(before <= offset < batches.position for offset, _ in some)
        found += some
    assert found == [(offset, value) for offset, value in log.readable if start <= offset < end]
    assert batches.position == min(log.end, end)
    assert batches.take_batch(Shape()) is None and batches.take_records(1) == []


def test_all_columns_have_their_arrow_types_and_values() -> None:
    rows = FetchedBatches(fetched(batch(5, [b"a", b"b"]), 5)).take_batch(Shape(ALL_COLUMNS, "us"))
    assert rows is not None
    rows.validate(full=True)
    assert rows.schema == pa.schema(
        {
            "topic": pa.utf8(),
            "partition": pa.int32(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", "UTC"),
            "timestamp_type": pa.int32(),
            "key": pa.binary(),
            "value": pa.binary(),
            "headers": pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())])),
        }
    )
    last = {name: rows[name][1].as_py() for name in ("topic", "partition", "offset", "key", "value", "headers")}
    assert last == {
        "topic": "orders",
        "partition": 3,
        "offset": 6,
        "key": b"k",
        "value": b"b",
        "headers": [{"key": "h", "value": b"x"}],
    }
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == [NOW * 1000, (NOW + 1) * 1000]


def test_unknown_columns_and_timestamp_units_raise_value_error() -> None:
    with pytest.raises(ValueError, match="'vaule' is no column of records; there are topic, partition, offset"):
        Shape(("vaule",)).check()
    with pytest.raises(ValueError, match="timestamp unit 'ns': expected ms or us"):
        Shape(timestamp_unit="ns").check()


def test_many_fetched_batches_are_merged_into_one_arrow_batch() -> None:
    data = b"".join(batch(10 * index, [b"v"] * 10) for index in range(20))
    rows = FetchedBatches(fetched(data)).take_batch(Shape())
    assert rows is not None and rows.num_rows == 200


def test_the_epoch_is_that_of_the_last_records_taken() -> None:
    batches = FetchedBatches(fetched(batch(0, [b"a", b"b"], epoch=4) + batch(2, [b"c"], epoch=6)))
    epochs = [(len(batches.take_records(100)), batches.position, batches.epoch) for _ in range(2)]
    assert epochs == [(2, 2, 4), (1, 3, 6)] and batches.last_epoch == 6


@pytest.mark.parametrize("check", [True, False])
def test_a_damaged_batch_raises_corrupt_message_after_the_batches_before_it(check: bool) -> None:
    data = batch(0, [b"a"]) + batch(1, [b"bb", b"cc"])
    data[-2 if check else HEADER_BYTES + len(batch(0, [b"a"]))] ^= 0xFF
    batches = FetchedBatches(fetched(data), check_crcs=check)
    assert [record.value for record in batches.take_records(100)] == [b"a"] and batches.position == 1
    for take in (lambda: batches.take_records(1), lambda: batches.take_batch(Shape())):
        with pytest.raises(KafkaError, match="orders-3 at offset 1: ") as refused:
            take()
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE and batches.position == 1


def test_a_truncated_batch_is_ignored_unless_it_is_the_only_one() -> None:
    first, second = batch(0, [b"a"]), batch(1, [b"b"])
    batches = FetchedBatches(fetched(first + second[:-1]))
    assert [record.offset for record in batches.take_records(10)] == [0] and batches.is_spent
    with pytest.raises(KafkaError, match="orders-3 at offset 0: 70 bytes are not one whole batch"):
        FetchedBatches(fetched(batch(0, [b"v" * 100])[:70]))
    with pytest.raises(KafkaError, match="orders-3 at offset 5: the batches end before it"):
        FetchedBatches(fetched(first, 5))


def test_messages_with_magic_0_and_1_are_decoded() -> None:
    magic_1 = message(1, 4, b"x", timestamp=NOW) + message(1, 6, None, timestamp=NOW + 1)
    data = magic_1 + message(0, 7, b"y") + bytes(batch(8, [b"z"], epoch=-1))
    rows = FetchedBatches(fetched(data, 5)).take_batch(RECORD_SHAPE)
    assert rows is not None
    assert rows["offset"].to_pylist() == [6, 7, 8] and rows["value"].to_pylist() == [None, b"y", b"z"]
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == [NOW + 1, -1, NOW]


def message(magic: int, offset: int, value: bytes | None, timestamp: int = -1) -> bytes:
    from zlib import crc32

    body = bytes([magic, 0]) + (timestamp.to_bytes(8, "big", signed=True) if magic else b"")
    body += (-1).to_bytes(4, "big", signed=True)
    body += (-1 if value is None else len(value)).to_bytes(4, "big", signed=True) + (value or b"")
    return offset.to_bytes(8, "big") + (len(body) + 4).to_bytes(4, "big") + crc32(body).to_bytes(4, "big") + body


@given(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 100), st.integers(0, 255)), max_size=4))
@settings(deadline=None, max_examples=150)
def test_arbitrary_bytes_decode_or_raise_corrupt_message(tail: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(batch(0, [b"one", b"two"], codec=Codec.LZ4) + batch(2, [b"three"]) + tail)
    for position, byte in changes:
        data[position] = byte
    try:
        batches = FetchedBatches(fetched(data), check_crcs=False)
        while not batches.is_spent:
            before = batches.position
            rows = batches.take_batch(Shape())
            if rows is not None:
                rows.validate(full=True)
            assert batches.position >= before
            if rows is None:
                break
    except KafkaError as error:
        assert error.code is ErrorCode.CORRUPT_MESSAGE
