"""Stored transactions: Kafka's encoding, and CorruptData for anything else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import TopicPartition
from headrace.coordinators.transaction.records import (
    TransactionRecord,
    decode_transaction_record,
    encode_transaction_record,
)
from headrace.coordinators.transaction.settings import TransactionSettings, transaction_settings
from headrace.coordinators.transaction.state import Transaction, record_of, transaction_of
from headrace.coordinators.transaction.states import STORED, State

INT64 = st.integers(-1, 2**63 - 1)
EPOCHS = st.integers(-1, 32_767)
PARTITIONS = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(["a", "b", "längst"]), st.integers(0, 9)), max_size=6
)


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    state = draw(st.sampled_from(sorted(STORED)))
    return Transaction(
        draw(INT64),
        draw(EPOCHS),
        draw(st.integers(1, 2**31 - 1)),
        state,
        frozenset() if state is State.EMPTY else draw(PARTITIONS),
        draw(INT64),
        draw(INT64),
        draw(INT64),
        draw(INT64),
        draw(EPOCHS),
        draw(st.integers(0, 2)),
    )


@settings(deadline=None, max_examples=100)
@given(transactions(), st.integers(0, 2), st.text(max_size=20))
def test_transactions_round_trip(transaction: Transaction, version: int, name: str) -> None:
    record = record_of(name, transaction, version)
    found = decode_transaction_record(*encode_transaction_record(record))
    assert found == record
    read = transaction_of(found.value)
    if found.version == 0:
        assert version == 0 and transaction.next_producer_id == -1
        read = read.replace(
            previous_producer_id=transaction.previous_producer_id,
            next_producer_epoch=transaction.next_producer_epoch,
            client_version=transaction.client_version,
        )
    assert read == transaction


@pytest.mark.parametrize("version, written", [(0, 0), (1, 1), (2, 1)])
def test_the_version_of_a_value_follows_the_transaction_version(version: int, written: int) -> None:
    record = record_of("id", Transaction(1, 2, 3), version)
    _, value = encode_transaction_record(record)
    assert record.version == written and value[:2] == bytes((0, written))


def test_encoded_transactions_match_kafka() -> None:
    """Values are encoded by hand from the schemas: version 0 without partitions, version 1 with them and two tags."""
    key, value = encode_transaction_record(record_of("id", Transaction(1, 2, 3, updated_ms=4), 0))
    assert key == b"\x00\x00" + b"\x00\x02id"
    head = (1).to_bytes(8, "big") + (2).to_bytes(2, "big") + (3).to_bytes(4, "big")
    assert value == b"\x00\x00" + head + b"\x00" + b"\xff" * 4 + (4).to_bytes(8, "big") + b"\xff" * 8
    ongoing = Transaction(
        1,
        2,
        3,
        State.ONGOING,
        frozenset({TopicPartition("t", 5), TopicPartition("t", 1)}),
        started_ms=6,
        updated_ms=7,
        previous_producer_id=1,
        client_version=2,
    )
    _, value = encode_transaction_record(record_of("id", ongoing, 2))
    partitions = b"\x02" + b"\x02t" + b"\x03" + (1).to_bytes(4, "big") + (5).to_bytes(4, "big") + b"\x00"
    tags = b"\x02" + b"\x00\x08" + (1).to_bytes(8, "big") + b"\x02\x02" + b"\x00\x02"
    times = (7).to_bytes(8, "big") + (6).to_bytes(8, "big")
    assert value == b"\x00\x01" + head + b"\x01" + partitions + times + tags


def test_unknown_records_are_skipped_and_damaged_ones_raise_corrupt_data() -> None:
    assert decode_transaction_record(b"\x00\x01whatever", b"") is None
    key, value = encode_transaction_record(record_of("id", Transaction(1, 2, 3), 2))
    assert decode_transaction_record(key, None) == TransactionRecord("id", None)
    assert encode_transaction_record(TransactionRecord("id", None)) == (key, None)
    unknown, never_stored = bytearray(value), bytearray(value)
    unknown[16], never_stored[16] = 9, State.DEAD
    for broken in (b"", value[:-1], b"\x00\x09" + value[2:], bytes(unknown), bytes(never_stored)):
        with pytest.raises(CorruptData):
            decode_transaction_record(key, broken)
    for broken in (None, b"", b"\x00", key[:-1]):
        with pytest.raises(CorruptData):
            decode_transaction_record(broken, value)


@settings(deadline=None, max_examples=200)
@given(transactions(), st.integers(1, 2), st.data())
def test_damaged_values_decode_or_raise_corrupt_data(
    transaction: Transaction, version: int, data: st.DataObject
) -> None:
    key, value = encode_transaction_record(record_of("id", transaction, version))
    broken = bytearray(value)
    at = data.draw(st.integers(0, len(broken) - 1))
    if data.draw(st.booleans()):
        del broken[at:]
    else:
        broken[at] = data.draw(st.integers(0, 255))
    try:
        found = decode_transaction_record(key, bytes(broken))
    except CorruptData:
        return
    assert transaction_of(found.value).state in STORED


def test_settings_are_read_from_node_options() -> None:
    values = {field.replace("_", "."): 7 for field in TransactionSettings.__struct_fields__}
    values["transaction.two.phase.commit.enable"] = True
    assert transaction_settings(values) == TransactionSettings(7, 7, 7, 7, True)
