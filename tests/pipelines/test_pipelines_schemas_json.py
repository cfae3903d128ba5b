"""Decoding JSON values a column at a time; bad values are found without affecting the others."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from headrace.pipelines.schemas.columns import Decoded

pytest.importorskip("pyspark", reason="needs the extra spark")

import pyarrow as pa

from headrace.base.errors import ConfigError
from headrace.pipelines.schemas.json_values import JsonDecoder
from headrace.pipelines.schemas.spark_types import types_from_ddl

DDL = "id bigint, name string, price double, tags array<string>, at struct<x int, y boolean>"


def decoded(ddl: str, *values: Any) -> Decoded:
    return JsonDecoder(types_from_ddl(ddl)).decode(pa.array(values, pa.binary()))


def rows(ddl: str, *values: Any) -> list[dict[str, Any] | None]:
    found = decoded(ddl, *values)
    assert not found.bad
    return found.column.to_pylist()


def test_missing_fields_are_null_and_unknown_fields_are_ignored() -> None:
    assert rows("a int, b string", b'{"a":1,"c":[{}]}', None, b'{"b":"x"}', b" {\n} ") == [
        {"a": 1, "b": None},
        None,
        {"a": None, "b": "x"},
        {"a": None, "b": None},
    ]


@pytest.mark.parametrize("extra", ["", ", m map<string,int>"])
def test_values_of_each_type_are_parsed_and_invalid_ones_marked_bad(extra: str) -> None:
    """A schema with a map takes a different code path, with the same result."""
    ddl = "d date, t timestamp, n timestamp_ntz, m2 decimal(6,2), f float, i tinyint, b boolean, s string" + extra
    text = b'{"d":"2024-02-29","t":"2024-01-01T01:00:00.5+01:00","n":"2024-01-01T00:00:00","m2":12.5,"f":2,"i":-7,"b":true,"s":""}'
    (found,) = rows(ddl, text)
    found.pop("m", None)
    assert found == {
        "d": date(2024, 2, 29),
        "t": datetime(2024, 1, 1, 0, 0, 0, 500000, tzinfo=UTC),
        "n": datetime(2024, 1, 1),
        "m2": Decimal("12.50"),
        "f": 2.0,
        "i": -7,
        "b": True,
        "s": "",
    }
    wrong = [
        '{"d":"2024-02-30"}',
        '{"t":"noon"}',
        '{"m2":1.234}',
        '{"m2":12345}',
        '{"i":128}',
        '{"i":1.5}',
        '{"b":1}',
        '{"s":1}',
    ]
    result = decoded(ddl, *[one.encode() for one in wrong], b'{"i":1}')
    assert sorted(result.bad) == list(range(len(wrong)))
    assert result.column[len(wrong)].as_py()["i"] == 1


def test_maps_and_base64_binaries_are_decoded() -> None:
    text = json.dumps({"m": {"x": 1, "y": None}, "b": b64encode(b"\xff\0").decode(), "l": [{"k": "v"}]}).encode()
    assert rows("m map<string,int>, b binary, l array<map<string,string>>", text) == [
        {"m": [("x", 1), ("y", None)], "b": b"\xff\0", "l": [[("k", "v")]]}
    ]
    found = decoded("b binary", b'{"b":"###"}', b'{"b":5}', b'{"b":"AA=="}')
    assert sorted(found.bad) == [0, 1]
    assert "b:" in found.bad[0]


HOSTILE = [
    b"",
    b" ",
    b"null",
    b"3",
    b"[1]",
    b'"x"',
    b'{"id":1}{"id":2}',
    b'{"id":1}null',
    b'{"id":1} x',
    b'{"id":',
    b'{"id":1',
    b'{"name":"\xff"}',
    b'{"name":"\\ud800"}',
    b'{"name":"x\ny"}',
    b'{"x":NaN}',
    b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"x":' * 100_000,
    b'{"id":9223372036854775808}',
    b'{"id":"1"}',
    b'{"id":1,"id":2}',
    b'{"at":{"x":3000000000}}',
    b'{"tags":"a"}',
    b"\0\1\2",
    b"\xef\xbb\xbf{}",
]


@pytest.mark.parametrize("bad", HOSTILE, ids=range(len(HOSTILE)))
def test_a_bad_value_is_found_among_good_ones(bad: bytes) -> None:
    found = decoded(DDL, b'{"id":1}', bad, None, b'{"id":2}', bad)
    assert sorted(found.bad) == [1, 4]
    assert all(found.bad.values()) and max(map(len, found.bad.values())) <= 300
    assert [None if one is None else one["id"] for one in found.column.to_pylist()] == [1, None, None, 2, None]


def test_empty_and_all_null_columns_are_decoded() -> None:
    assert decoded(DDL).column.type == decoded(DDL, None, None).column.type
    assert decoded(DDL, None, None).column.null_count == 2


def test_only_structs_and_maps_with_text_keys_are_accepted() -> None:
    with pytest.raises(ConfigError, match="must be a struct"):
        JsonDecoder(cast("StructType", types_from_ddl("a int"))["a"].dataType)
    with pytest.raises(ConfigError, match="names of JSON are text"):
        JsonDecoder(types_from_ddl("m map<int,int>"))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | TEXTS,
        "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.none() | st.lists(st.none() | TEXTS, max_size=3),
        "at": st.none()
        | st.fixed_dictionaries({"x": st.none() | st.integers(-(2**31), 2**31 - 1), "y": st.booleans()}),
    },
)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.none() | RECORDS, max_size=6), st.sampled_from([None, 1]), st.lists(st.binary(max_size=12), max_size=3)
)
def test_valid_records_are_decoded_among_random_bytes(
    records: list[dict[str, Any] | None], indent: int | None, noise: list[bytes]
) -> None:
    names = ("id", "name", "price", "tags", "at")
    values = [None if one is None else json.dumps(one, indent=indent).encode() for one in records]
    found = decoded(DDL, *noise, *values)
    assert all(row < len(noise) for row in found.bad)
    expected = [None if one is None else {name: one.get(name) for name in names} for one in records]
    assert found.column.to_pylist()[len(noise) :] == expected
