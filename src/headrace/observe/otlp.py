"""A reader of OpenTelemetry metrics (MetricsData v1, protobuf): only gauges, sums and histograms, point by point.

It is hand-written because it needs little protobuf and reads untrusted bytes: nothing recurses, nothing is copied before its length
is checked, and the contents of a payload are limited. Unknown fields are skipped, as protobuf requires.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from math import isfinite
from struct import Struct, iter_unpack
from typing import Any, NamedTuple

FIELDS_MAX = 200_000  # in one payload, all its messages together
POINT_FIELDS_MAX = 500  # in one point or resource, which is read without yielding
ATTRIBUTE_FIELDS_MAX = 16  # in one attribute and in its value
ATTRIBUTES_MAX = 24  # in one point, and in one resource
BUCKETS_MAX = 200  # in one histogram, with the bucket above the last bound
TEXT_BYTES_MAX = 1024  # in a name or an attribute's value

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
DELTA = 1  # AggregationTemporality
NO_RECORDED_VALUE = 1  # flag of a point

_SIGNED = Struct("<q")
_DOUBLE = Struct("<d")

Buffer = bytes | bytearray | memoryview
Attributes = tuple[tuple[str, str], ...]
Span = tuple[int, int]


class BadMetrics(ValueError):
    """Raised if a payload is not OTLP metrics, or exceeds a limit."""


class Kind(Enum):
    GAUGE = "gauge"
    SUM = "sum"
    HISTOGRAM = "histogram"
    OTHER = "other"  # one point without a value represents the whole metric


# Kinds by the field of a metric; OTHER are exponential histograms and summaries.
_KINDS = {5: Kind.GAUGE, 7: Kind.SUM, 9: Kind.HISTOGRAM, 10: Kind.OTHER, 11: Kind.OTHER}


class Buckets(NamedTuple):
    """A histogram at one moment. `counts` has one more entry than `bounds`, for values above the last bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Point(NamedTuple):
    name: str
    kind: Kind
    is_monotonic: bool
    is_delta: bool  # the value counts from the previous point, not from the start
    attributes: Attributes  # attributes of the resource, then those of the point
    value: float | Buckets


def read_points(data: Buffer) -> Iterator[Point | None]:
    """Return an iterator over the points, with None for each field that is not a point.

    A None lets a caller that must share the event loop check the clock. Raise BadMetrics, possibly after valid points.
    """
    return _Reader(data).points()


class _Reader:
    """Reads one payload. Fields are (number, wire type, start, end) of their bytes; a varint's `start` is its value."""

    def __init__(self, data: Buffer) -> None:
        self._data = data
        self._fields_left = FIELDS_MAX

    def points(self) -> Iterator[Point | None]:
        for number, wire, start, end in self._fields(0, len(self._data)):
            if number == 1 and wire == BYTES:
                yield from self._resource_metrics(start, end)
            else:
                yield None

    def _resource_metrics(self, start: int, end: int) -> Iterator[Point | None]:
        resource: Attributes = ()
        scopes: list[Span] = []
        for number, wire, inner, inner_end in self._fields(start, end):
            if number == 1 and wire == BYTES:
                found = self._fields(inner, inner_end, POINT_FIELDS_MAX)
                resource = self._attributes([(at, to) for key, kind, at, to in found if key == 1 and kind == BYTES])
            elif number == 2 and wire == BYTES:
                scopes.append((inner, inner_end))
            yield None
        # AFTER all fields are read: the resource may follow the metrics that it applies to.
        for scope in scopes:
            for number, wire, inner, inner_end in self._fields(*scope):
                if number == 2 and wire == BYTES:
                    yield from self._metric(inner, inner_end, resource)
                else:
                    yield None

    def _metric(self, start: int, end: int, resource: Attributes) -> Iterator[Point | None]:
        name, kind, body = "", None, (0, 0)
        for number, wire, inner, inner_end in self._fields(start, end):
            if number == 1:
                name = self._text(wire, inner, inner_end)
            elif number in _KINDS and wire == BYTES:
                kind, body = _KINDS[number], (inner, inner_end)
            yield None
        if kind is None or not name:
            return
        if kind is Kind.OTHER:
            yield Point(name, kind, False, False, (), 0.0)
            return
        points: list[Span] = []
        is_delta = is_monotonic = False
        for number, wire, inner, inner_end in self._fields(*body):
            if number == 1 and wire == BYTES:
                points.append((inner, inner_end))
            elif number == 2 and wire == VARINT:
                is_delta = inner == DELTA
            elif number == 3 and wire == VARINT:
                is_monotonic = inner != 0
            yield None
        for point in points:
            attributes, value = self._buckets(*point) if kind is Kind.HISTOGRAM else self._number(*point)
            if value is None:
                yield None
            else:
                yield Point(name, kind, is_monotonic, is_delta, resource + attributes, value)

    def _number(self, start: int, end: int) -> tuple[Attributes, float | None]:
        value: float | None = None
        spans, flags = [], 0
        for number, wire, inner, inner_end in self._fields(start, end, POINT_FIELDS_MAX):
            if number == 7 and wire == BYTES:
                spans.append((inner, inner_end))
            elif number == 4 and wire == FIXED64:
                (value,) = _DOUBLE.unpack_from(self._data, inner)
            elif number == 6 and wire == FIXED64:
                (value,) = _SIGNED.unpack_from(self._data, inner)
            elif number == 8 and wire == VARINT:
                flags = inner
        return self._attributes(spans), None if flags & NO_RECORDED_VALUE else value

    def _buckets(self, start: int, end: int) -> tuple[Attributes, Buckets | None]:
        spans, flags, total = [], 0, 0.0
        counts: tuple[int, ...] = ()
        bounds: tuple[float, ...] = ()
        for number, wire, inner, inner_end in self._fields(start, end, POINT_FIELDS_MAX):
            if number == 9 and wire == BYTES:
                spans.append((inner, inner_end))
            elif number == 5 and wire == FIXED64:
                (total,) = _DOUBLE.unpack_from(self._data, inner)
            elif number == 6 and wire in (BYTES, FIXED64):
                counts += self._packed("<Q", inner, inner_end)
            elif number == 7 and wire in (BYTES, FIXED64):
                bounds += self._packed("<d", inner, inner_end)
            elif number == 10 and wire == VARINT:
                flags = inner
            if len(counts) > BUCKETS_MAX or len(bounds) > BUCKETS_MAX:
                raise BadMetrics(f"a histogram of more than {BUCKETS_MAX} buckets")
        attributes = self._attributes(spans)
        if flags & NO_RECORDED_VALUE or not counts:
            return attributes, None  # without buckets it is no histogram for Prometheus
        if len(counts) != len(bounds) + 1:
            raise BadMetrics(f"a histogram of {len(counts)} counts and {len(bounds)} bounds: there is one bound less")
        if not all(map(isfinite, bounds)) or any(low >= high for low, high in pairwise(bounds)):
            raise BadMetrics("a histogram whose bounds do not rise")
        return attributes, Buckets(bounds, counts, total)

    def _packed(self, shape: str, start: int, end: int) -> tuple[Any, ...]:
        if (end - start) % 8 or end - start > 8 * BUCKETS_MAX:
            raise BadMetrics(f"{end - start} bytes of buckets; allowed are {BUCKETS_MAX} of 8")
        return tuple(value for (value,) in iter_unpack(shape, memoryview(self._data)[start:end]))

    def _attributes(self, spans: list[Span]) -> Attributes:
        if len(spans) > ATTRIBUTES_MAX:
            raise BadMetrics(f"a point or resource with more than {ATTRIBUTES_MAX} attributes")
        found = []
        for span in spans:
            key, text = "", None
            for number, wire, start, end in self._fields(*span, ATTRIBUTE_FIELDS_MAX):
                if number == 1:
                    key = self._text(wire, start, end)
                elif number == 2 and wire == BYTES:
                    text = self._any_value(start, end)
            if key and text is not None:
                found.append((key, text))
        return tuple(found)

    def _any_value(self, start: int, end: int) -> str | None:
        """Return the text of a scalar; None for lists, maps and raw bytes, which cannot be labels."""
        for number, wire, inner, inner_end in self._fields(start, end, ATTRIBUTE_FIELDS_MAX):
            if number == 1:
                return self._text(wire, inner, inner_end)
            if number == 2 and wire == VARINT:
                return "true" if inner else "false"
            if number == 3 and wire == VARINT:
                return str(inner - (1 << 64) if inner >> 63 else inner)
            if number == 4 and wire == FIXED64:
                return repr(_DOUBLE.unpack_from(self._data, inner)[0])
        return None

    def _text(self, wire: int, start: int, end: int) -> str:
        if wire != BYTES or end - start > TEXT_BYTES_MAX:
            raise BadMetrics(f"a name or an attribute that is no text of at most {TEXT_BYTES_MAX} bytes")
        try:
            return str(self._data[start:end], "utf-8")
        except UnicodeDecodeError:
            raise BadMetrics("a name or an attribute that is not UTF-8") from None

    # --- protobuf

    def _fields(self, position: int, end: int, most: int = FIELDS_MAX) -> Iterator[tuple[int, int, int, int]]:
        data = self._data
        while position < end:
            if self._fields_left == 0 or most == 0:
                raise BadMetrics(f"too many fields: {FIELDS_MAX} are allowed, {POINT_FIELDS_MAX} in a point")
            self._fields_left -= 1
            most -= 1
            tag = data[position]
            position += 1
            if tag >= 0x80:
                tag, position = self._varint(position - 1, end)
            wire = tag & 7
            if wire == BYTES:
                length, start = self._varint(position, end)
                position = start + length
            elif wire == VARINT:
                start, position = self._varint(position, end)
            elif wire in (FIXED64, FIXED32):
                start = position
                position += 8 if wire == FIXED64 else 4
            else:
                raise BadMetrics(f"a field of the unknown wire type {wire}")
            if position > end or tag < 8:
                raise BadMetrics("a field that has no number, or reaches beyond its message")
            yield tag >> 3, wire, start, position

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while position < end and shift < 64:
            byte = self._data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, position
            shift += 7
        raise BadMetrics("a number that does not end")
