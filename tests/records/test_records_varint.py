"""Varints: encoding, round trips and invalid input."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.records.batch import CorruptBatch
from headrace.records.varint import read_varint, read_varlong, varint, varlong


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_varints_use_zigzag_encoding(value: int, encoded: str) -> None:
    assert varint(value).hex() == encoded
    assert varlong(value).hex() == encoded
    assert read_varint(bytes.fromhex("ff" + encoded), 1) == (value, 1 + len(encoded) // 2)


@given(st.integers(-(2**63), 2**63 - 1))
@settings(deadline=None)
def test_varlongs_round_trip(value: int) -> None:
    encoded = varlong(value)
    assert len(encoded) <= 10
    assert read_varlong(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize("encoded", ["", "80", "8080808080", "808080808000", "8080808010", "ffffffff7f"])
def test_invalid_varints_raise_corrupt_batch(encoded: str) -> None:
    with pytest.raises(CorruptBatch):
        read_varint(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("encoded", ["", "ff", "80" * 10, "80" * 10 + "00", "80" * 9 + "02"])
def test_invalid_varlongs_raise_corrupt_batch(encoded: str) -> None:
    with pytest.raises(CorruptBatch):
        read_varlong(bytes.fromhex(encoded), 0)


def test_encoding_values_beyond_32_or_64_bits_raises_value_error() -> None:
    for value in (2**31, -(2**31) - 1):
        with pytest.raises(ValueError, match="32 bits"):
            varint(value)
    for value in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match="64 bits"):
            varlong(value)
