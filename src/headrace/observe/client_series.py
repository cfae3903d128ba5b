"""The latest metrics that clients push, as series for Prometheus.

Clients push deltas, which are added up to totals. Names are converted to valid Prometheus names, with a prefix that separates them
from the node's own. The number of series is limited per client and in total; a client's series are removed with the client.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import inf

from msgspec import Struct, field

from headrace.observe.otlp import Buckets, Kind, Point

PREFIX = "client_"
INSTANCE_LABEL = "client_instance_id"
SERIES_MAX = 20_000  # lines in /metrics for all clients together
CLIENT_SERIES_MAX = 2_000  # lines for one client
NAME_CHARS_MAX = 200
LABELS_CHARS_MAX = 1_500  # all labels of one series together
LABEL_CHARS_MAX = 300  # longer values are truncated
LINES_PER_PIECE = 1_000

_UNFIT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
# Control characters are replaced: a client must not send escape sequences to the terminal of an operator who runs curl.
_ESCAPES = dict.fromkeys((*range(32), *range(127, 160)), "\ufffd") | {
    ord("\\"): r"\\",
    ord('"'): r"\"",
    ord("\n"): r"\n",
}
_RESERVED_LABELS = frozenset({"le", "quantile"})


class _Series(Struct):
    labels: str  # the text between the braces
    at_ms: float
    value: float | Buckets

    @property
    def lines(self) -> int:
        return len(self.value.counts) + 2 if isinstance(self.value, Buckets) else 1


class _Family(Struct):
    name: str
    kind: str  # Prometheus' type name
    source: str  # the client's name of the metric
    members: dict[str, _Series] = field(default_factory=dict)  # by labels

    @property
    def names(self) -> tuple[str, ...]:
        """Return the metric names that its lines start with."""
        if self.kind != "histogram":
            return (self.name,)
        return (self.name, *(f"{self.name}_{part}" for part in ("bucket", "sum", "count")))


class ClientSeries:
    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}  # by each of the family's `names`
        self._owned: dict[str, dict[tuple[str, str], None]] = {}  # family name and labels, by client
        self._lines: dict[str, int] = {}  # by client
        self._lines_total = 0

    def __len__(self) -> int:
        return self._lines_total

    def take(self, owner: str, client: Mapping[str, str], point: Point, now_ms: float) -> str | None:
        """Store a point and return None, or return in a word why it was dropped.

        `owner` is the client's instance id, `client` holds the other labels that identify it.
        """
        name = PREFIX + _UNFIT_IN_NAMES.sub("_", point.name)
        labels = _labels({INSTANCE_LABEL: owner, **client}, point.attributes)
        if len(name) > NAME_CHARS_MAX or len(labels) > LABELS_CHARS_MAX:
            return "too_long"
        kind = _kind(point)
        family = self._families.get(name)
        if family is None:
            family = _Family(name, kind, point.name)
            if any(one in self._families for one in family.names):
                return "conflict"
        elif family.name != name or (family.kind == "histogram") != (kind == "histogram"):
            return "conflict"
        elif family.kind != kind:
            family.kind = "untyped"  # one client sends a counter, another a gauge
        series = family.members.get(labels)
        if series is None:
            series = _Series(labels, now_ms, point.value)
            if (
                self._lines.get(owner, 0) + series.lines > CLIENT_SERIES_MAX
                or self._lines_total + series.lines > SERIES_MAX
            ):
                return "too_many"
            self._add(owner, family, series)
        else:
            if isinstance(series.value, Buckets) and not _fits(series.value, point.value):
                return "conflict"
            series.value, series.at_ms = _next(series.value, point), now_ms
        return None

    def _add(self, owner: str, family: _Family, series: _Series) -> None:
        for name in family.names:
            self._families[name] = family
        family.members[series.labels] = series
        self._owned.setdefault(owner, {})[family.name, series.labels] = None
        self._count(owner, series.lines)

    def _count(self, owner: str, lines: int) -> None:
        self._lines[owner] = self._lines.get(owner, 0) + lines
        self._lines_total += lines

    def forget(self, owner: str, before_ms: float = inf) -> None:
        """Remove the client's series that it last pushed before `before_ms`; by default all of them."""
        owned = self._owned.get(owner)
        if owned is None:
            return
        for name, labels in list(owned):
            family = self._families[name]
            series = family.members[labels]
            if series.at_ms < before_ms:
                del family.members[labels], owned[name, labels]
                self._count(owner, -series.lines)
                if not family.members:
                    for one in family.names:
                        del self._families[one]
        if not owned:
            del self._owned[owner], self._lines[owner]

    def expose(self) -> Iterator[bytes]:
        """Yield all series in Prometheus' text format, in pieces. The series may change between two pieces."""
        lines: list[str] = []
        for name in sorted(self._families):
            family = self._families.get(name)
            if family is None or family.name != name:
                continue
            lines.append(f"# HELP {name} {family.source.translate(_ESCAPES)}, pushed by clients")
            lines.append(f"# TYPE {name} {family.kind}")
            for series in list(family.members.values()):
                _render(name, series, lines)
                if len(lines) >= LINES_PER_PIECE:
                    yield _joined(lines)
                    lines = []
        if lines:
            yield _joined(lines)


def _joined(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def _render(name: str, series: _Series, lines: list[str]) -> None:
    value = series.value
    if not isinstance(value, Buckets):
        lines.append(f"{name}{{{series.labels}}} {_number(value)}")
        return
    seen = 0
    for bound, count in zip((*map(repr, value.bounds), "+Inf"), value.counts, strict=True):
        seen += count
        lines.append(f'{name}_bucket{{{series.labels},le="{bound}"}} {seen}')
    lines.append(f"{name}_sum{{{series.labels}}} {_number(value.total)}")
    lines.append(f"{name}_count{{{series.labels}}} {seen}")


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if value in (inf, -inf) else repr(value)


def _kind(point: Point) -> str:
    if point.kind is Kind.HISTOGRAM:
        return "histogram"
    return "counter" if point.kind is Kind.SUM and point.is_monotonic else "gauge"


def _next(before: float | Buckets, point: Point) -> float | Buckets:
    """Return the value after this point; deltas are added to the value before."""
    if not point.is_delta or point.kind is Kind.GAUGE:
        return point.value
    if isinstance(before, Buckets):
        assert isinstance(point.value, Buckets)
        counts = tuple(old + new for old, new in zip(before.counts, point.value.counts, strict=True))
        return Buckets(before.bounds, counts, before.total + point.value.total)
    assert not isinstance(point.value, Buckets)
    return before + point.value


def _fits(before: Buckets, after: float | Buckets) -> bool:
    return isinstance(after, Buckets) and after.bounds == before.bounds


def _labels(client: Mapping[str, str], attributes: tuple[tuple[str, str], ...]) -> str:
    """Return the labels, each name once: the client's identity first, which no attribute can override."""
    labels = dict(client)
    for key, value in attributes:
        name = _UNFIT_IN_NAMES.sub("_", key).lstrip("_0123456789")
        if name and name not in _RESERVED_LABELS:
            # A point's attribute overrides one of its resource, which precedes it.
            labels[name] = client.get(name, value)
    return ",".join(f'{name}="{value[:LABEL_CHARS_MAX].translate(_ESCAPES)}"' for name, value in labels.items())
