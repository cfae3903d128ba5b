"""Control records: transaction markers and raft's records, built and parsed."""

from __future__ import annotations

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER
from aiokafka.record.control_record import ControlRecord as AioControlRecord

from headrace.records.batch import CONTROL, TRANSACTIONAL, CorruptBatch, read_header
from headrace.records.builder import build_batch
from headrace.records.control import (
    ControlRecord,
    ControlType,
    ParsedControlRecord,
    TransactionMarker,
    build_control_batch,
    build_marker,
    parse_control_batch,
    parse_marker,
)
from headrace.records.record import Record, decode_records


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_markers_have_kafkas_format_and_parse_back(commit: bool) -> None:
    marker = TransactionMarker(commit, coordinator_epoch=12)
    batch = build_marker(marker, producer_id=5, producer_epoch=3, timestamp=1000, base_offset=77, leader_epoch=2)
    header = read_header(batch)
    assert header.attributes == CONTROL | TRANSACTIONAL
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 3, -1)
    assert (header.base_offset, header.record_count, header.leader_epoch) == (77, 1, 2)
    (record,) = decode_records(batch)
    assert record.key == (b"\0\0\0\1" if commit else b"\0\0\0\0")
    assert record.value == b"\0\0\0\0\0\x0c"
    assert AioControlRecord.parse(record.key) == (COMMIT_MARKER if commit else ABORT_MARKER)
    (parsed,) = parse_control_batch(batch)
    assert (parsed.offset, parsed.timestamp) == (77, 1000)
    assert parse_marker(parsed) == marker


def test_raft_control_records_round_trip_including_unknown_types() -> None:
    given = [ControlRecord(kind, b"content of %d" % kind) for kind in list(ControlType)[2:]]
    given.append(ControlRecord(99, b"from a later version"))
    batch = build_control_batch(given, timestamp=5, base_offset=10, leader_epoch=4)
    assert read_header(batch).attributes == CONTROL
    parsed = parse_control_batch(batch)
    assert [(record.type, record.value) for record in parsed] == given
    assert [record.offset for record in parsed] == list(range(10, 16))
    assert all(parse_marker(record) is None for record in parsed)


def test_invalid_control_batches_and_markers_are_refused() -> None:
    with pytest.raises(CorruptBatch, match="no control"):
        parse_control_batch(build_batch([Record(0, 0, b"\0\0\0\1", b"")]))
    for key in (None, b"", b"\0\0\0", b"\xff\xff\0\1"):
        with pytest.raises(CorruptBatch):
            parse_control_batch(build_batch([Record(0, 0, key, b"")], control=True))
    for value in (b"", b"\0\0\0\0\0", b"\xff\xff\0\0\0\0"):
        with pytest.raises(CorruptBatch):
            parse_marker(ParsedControlRecord(0, 0, ControlType.COMMIT, value))
    with pytest.raises(ValueError, match="record"):
        build_control_batch([], timestamp=0)
