"""Client series: deltas are summed, names and labels are made valid for Prometheus, and their number is limited."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.observe import client_series
from headrace.observe.client_series import ClientSeries
from headrace.observe.otlp import Buckets, Kind, Point

CLIENT_LABELS = {"client_id": "c", "client_software_name": "s"}


def gauge(name: str, value: float = 1.0, **attributes: Any) -> Point:
    return Point(name, Kind.GAUGE, False, False, tuple(attributes.items()), value)


def total(name: str, value: float, *, delta: bool = True, monotonic: bool = True) -> Point:
    return Point(name, Kind.SUM, monotonic, delta, (), value)


def histogram(counts: tuple[int, ...], bounds: tuple[float, ...] = (1.0, 5.0), delta: bool = True) -> Point:
    return Point("h", Kind.HISTOGRAM, False, delta, (), Buckets(bounds, counts, 2.5))


@pytest.fixture
def series() -> ClientSeries:
    return ClientSeries()


def take(series: ClientSeries, point: Point, owner: str = "i", now_ms: float = 0.0) -> str | None:
    return series.take(owner, CLIENT_LABELS, point, now_ms)


def shown(series: ClientSeries) -> list[Metric]:
    text = b"".join(series.expose()).decode()
    assert text.count("# TYPE") == len({line for line in text.splitlines() if line.startswith("# TYPE")})
    return list(text_string_to_metric_families(text))


def samples(series: ClientSeries) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for key, value in sample.labels.items() if key not in CLIENT_LABELS)): sample.value
        for family in shown(series)
        for sample in family.samples
    }


def test_labels_identify_the_client_that_pushed(series: ClientSeries) -> None:
    assert take(series, gauge("org.apache.kafka.producer.io-wait", 2.5, node_id="1")) is None
    [family] = shown(series)
    [sample] = family.samples
    assert (sample.name, sample.value, family.type) == ("client_org_apache_kafka_producer_io_wait", 2.5, "gauge")
    assert sample.labels == {"client_instance_id": "i", **CLIENT_LABELS, "node_id": "1"}


def test_deltas_are_summed_and_cumulative_values_replace_older_ones(series: ClientSeries) -> None:
    for count in (5, 0, 7):
        take(series, total("a.total", count))
    for value in (5.0, 3.0):
        take(series, total("b", value, delta=False))
        take(series, total("c", value, monotonic=False))
        take(series, gauge("d", value))
    assert samples(series) == {
        ("client_a_total", "i"): 12,
        ("client_b_total", "i"): 3.0,  # the parser's name for a counter
        ("client_c", "i"): 8.0,
        ("client_d", "i"): 3.0,
    }


def test_histogram_deltas_are_summed_and_cumulative_ones_replace_older_ones(series: ClientSeries) -> None:
    for counts in ((1, 2, 3), (0, 1, 0)):
        assert take(series, histogram(counts)) is None
    assert take(series, histogram((1,), ())) == "conflict"
    assert samples(series) == {
        ("client_h_bucket", "i", "1.0"): 1,
        ("client_h_bucket", "i", "5.0"): 4,
        ("client_h_bucket", "i", "+Inf"): 7,
        ("client_h_sum", "i"): 5.0,
        ("client_h_count", "i"): 7,
    }
    take(series, histogram((9, 9, 9), delta=False))
    assert samples(series)["client_h_count", "i"] == 27
    assert len(series) == 5


def test_a_name_already_used_by_another_kind_is_a_conflict(series: ClientSeries) -> None:
    take(series, histogram((1, 2, 3)))
    assert take(series, gauge("h")) == take(series, gauge("h.sum")) == "conflict"
    take(series, gauge("x_count"))
    assert series.take("i", CLIENT_LABELS, histogram((1, 2, 3))._replace(name="x"), 0.0) == "conflict"
    take(series, gauge("mixed"), "one")
    assert take(series, total("mixed", 1.0), "two") is None
    assert {family.name: family.type for family in shown(series)}["client_mixed"] == "unknown"


def test_invalid_names_are_sanitized_and_reserved_labels_are_dropped(series: ClientSeries) -> None:
    ugly = {
        "a\nb": 'x"\\\ny',
        "le": "0.5",
        "__name__": "stolen",
        "client_id": "forged",
        "9x": "\x1b[31m\x9b",
        "": "e",
        "é": "u",
    }
    point = Point('m"} 1\nforged', Kind.GAUGE, False, False, (*ugly.items(), ("a\tb", "later")), float("-inf"))
    assert take(series, point) is None
    [family] = shown(series)
    [sample] = family.samples
    assert sample.name == "client_m___1_forged" and sample.value == float("-inf")
    assert sample.labels == {
        "client_instance_id": "i",
        **CLIENT_LABELS,
        "a_b": "later",
        "name__": "stolen",
        "x": "\ufffd[31m\ufffd",
    }


def test_label_values_are_escaped_and_truncated(series: ClientSeries) -> None:
    take(series, gauge("m", a='x"\\\ny', b="z" * 1000))
    [sample] = shown(series)[0].samples
    assert sample.labels["a"] == 'x"\\\ny' and sample.labels["b"] == "z" * client_series.LABEL_CHARS_MAX
    assert take(series, gauge("n" * 300)) == "too_long"
    assert take(series, gauge("m", 1.0, **{f"l{index}": "z" * 300 for index in range(6)})) == "too_long"


def test_series_are_limited_per_client_and_in_total(series: ClientSeries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_series, "CLIENT_SERIES_MAX", 6)
    monkeypatch.setattr(client_series, "SERIES_MAX", 8)
    for index in range(6):
        assert take(series, gauge(f"g{index}"), "a") is None
    assert take(series, gauge("g6"), "a") == "too_many"
    assert take(series, gauge("g0", 2.0), "a") is None
    assert take(series, histogram((1, 2, 3)), "b") == "too_many"
    assert [take(series, gauge(f"g{index}"), "b") for index in range(3)] == [None, None, "too_many"]
    series.forget("a")
    assert len(series) == 2 and take(series, histogram((1, 2, 3)), "b") == "too_many"
    series.forget("b")
    series.forget("nobody")
    assert len(series) == 0 and shown(series) == []
    assert not series._families and not series._owned and not series._lines


def test_series_that_are_not_pushed_again_are_removed(series: ClientSeries) -> None:
    take(series, gauge("old"), now_ms=0.0)
    take(series, gauge("new"), now_ms=0.0)
    take(series, gauge("new"), now_ms=100.0)
    series.forget("i", before_ms=50.0)
    assert [family.name for family in shown(series)] == ["client_new"] and len(series) == 1


def test_exposition_is_chunked_and_tolerates_changes_between_chunks(series: ClientSeries) -> None:
    for index in range(1500):
        take(series, gauge("g", index=str(index)))
        take(series, gauge(f"x{index:04}"), "j")
    pieces = series.expose()
    first = next(pieces)
    series.forget("j")
    series.forget("i")
    assert first.count(b"\n") <= client_series.LINES_PER_PIECE + 5
    rest = b"".join(pieces)
    assert rest.count(b"# TYPE") <= 1 and len(series) == 0
