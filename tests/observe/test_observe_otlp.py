"""OTLP metrics from untrusted clients: what OpenTelemetry writes is read; anything else raises BadMetrics at little cost."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.observe.otlp_payloads import (
    HISTOGRAM,
    SUM,
    WRITTEN_BY_JAVA,
    attribute,
    field,
    metric,
    number,
    payload,
    varint,
)

from headrace.observe import otlp
from headrace.observe.otlp import BadMetrics, Buckets, Kind, Point, read_points


def points(data: bytes | memoryview) -> list[Point]:
    return [point for point in read_points(data) if point is not None]


def test_every_point_of_an_opentelemetry_payload_is_read() -> None:
    rack, topic = ("client_rack", "r1"), ("topic", "orders")
    many = (rack, topic, ("partition", "-7"), ("leader", "true"), ("share", "0.25"))
    found = points(WRITTEN_BY_JAVA)
    assert isinstance(found[1].value, float) and math.isnan(found[1].value)
    assert [found[0], *found[2:]] == [
        Point("g.double", Kind.GAUGE, False, False, many, 1.5),
        Point("g.int", Kind.GAUGE, False, False, (rack,), -3),
        Point("s.delta", Kind.SUM, True, True, (rack, topic), 1 << 40),
        Point("s.cumulative", Kind.SUM, False, False, (rack,), 9.0),
        Point("h", Kind.HISTOGRAM, False, True, (rack, topic), Buckets((1.0, 5.0), (1, 2, 3), 12.5)),
        Point("e", Kind.OTHER, False, False, (), 0.0),
        Point("q", Kind.OTHER, False, False, (), 0.0),
        Point("second", Kind.GAUGE, False, False, (), 1),
    ]
    assert points(memoryview(WRITTEN_BY_JAVA))[2:] == found[2:]


def test_a_trailing_resource_and_unpacked_bucket_counts_are_accepted() -> None:
    scope = field(2, field(2, metric("m", number(1))))
    resource = field(1, field(1, attribute("group_id", "g")))
    assert points(field(1, scope + resource))[0].attributes == (("group_id", "g"),)
    buckets = b"".join(varint(6 << 3 | 1) + struct.pack("<Q", count) for count in (4, 5)) + field(7, 0.5)
    [found] = points(payload(metric("h", buckets, kind=HISTOGRAM)))
    assert found.value == Buckets((0.5,), (4, 5), 0.0)


def histogram(bounds: Sequence[float], counts: Sequence[int]) -> bytes:
    packed = field(6, struct.pack(f"<{len(counts)}Q", *counts)) + field(7, struct.pack(f"<{len(bounds)}d", *bounds))
    return payload(metric("h", packed, kind=HISTOGRAM))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"\x0a",
        b"\x0a\x05a",
        b"\x02\x00",  # field number 0
        b"\x0b",  # the start of a group
        b"\x80" * 11 + b"\x01",
        varint(1 << 3 | 1) + b"1234567",
        payload(field(1, b"\xff\xfe")),
        payload(field(1, 7)),
        payload(metric("m" * (otlp.TEXT_BYTES_MAX + 1), number(1))),
        payload(metric("m", number(1, **{f"a{index}": "x" for index in range(otlp.ATTRIBUTES_MAX + 1)}))),
        payload(metric("m", field(20, 1) * (otlp.POINT_FIELDS_MAX + 1))),
        payload(metric("m", field(7, field(20, 1) * (otlp.ATTRIBUTE_FIELDS_MAX + 1)))),
        field(20, 1) * (otlp.FIELDS_MAX + 1),
        histogram([1.0, 1.0], [1, 2, 3]),
        histogram([2.0, 1.0], [1, 2, 3]),
        histogram([math.nan], [1, 2]),
        histogram([math.inf], [1, 2]),
        histogram([1.0], [1, 2, 3]),
        histogram([float(index) for index in range(otlp.BUCKETS_MAX)], [0] * (otlp.BUCKETS_MAX + 1)),
        payload(metric("h", field(6, b"123"), kind=HISTOGRAM)),
    ],
)
def test_malformed_or_oversized_payloads_raise_bad_metrics(data: bytes) -> None:
    with pytest.raises(BadMetrics):
        points(data)


def test_metrics_without_a_name_or_value_yield_no_point() -> None:
    for empty in (
        b"",
        payload(metric("", number(1))),
        payload(metric("m", b"")),
        payload(metric("m", number(1) + field(8, 1))),
        payload(metric("h", field(5, 1.0), kind=HISTOGRAM)),
        payload(field(1, "m") + field(5, 3)),  # a gauge that is encoded as a number
        field(1, 3),
        field(3, "elsewhere"),
    ):
        assert points(empty) == []


def test_the_reader_yields_between_the_fields_of_a_large_payload() -> None:
    """Check that the reader never reads many fields between two steps."""
    reader = read_points(field(20, 1) * 1000 + payload(*[metric("m", number(1))] * 100))
    assert sum(1 for _ in reader) > 1000


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_arbitrary_bytes_decode_or_raise_bad_metrics(data: st.DataObject) -> None:
    good = payload(
        metric("m", number(1, a="b"), kind=SUM, delta=True), metric("h", field(6, b"12345678"), kind=HISTOGRAM)
    )
    raw = bytearray(data.draw(st.one_of(st.binary(max_size=200), st.just(good), st.just(WRITTEN_BY_JAVA))))
    for _ in range(data.draw(st.integers(0, 4))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = points(bytes(raw))
    except BadMetrics:
        return
    assert all(isinstance(point, Point) and point.name for point in found)
