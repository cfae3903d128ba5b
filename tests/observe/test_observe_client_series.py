"""Client series: deltas are summed, names and labels are made valid for Prometheus, and their number is limited."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.observe import client_series
from headrace.observe.client_series import ClientSeries
from headrace.observe.otlp import Buckets, Kind, Point

WHO = {"client_id": "c", "client_software_name": "s"}


def gauge(name, value=1.0, **attributes):
    return Point(name, Kind.GAUGE, False, False, tuple(attributes.items()), value)


def total(name, value, *, delta=True, monotonic=True):
    return Point(name, Kind.SUM, monotonic, delta, (), value)


def histogram(counts, bounds=(1.0, 5.0), delta=True):
    return Point("h", Kind.HISTOGRAM, False, delta, (), Buckets(bounds, counts, 2.5))


@pytest.fixture
def series():
    return ClientSeries()


def take(series, point, owner="i", now_ms=0.0):
    return series.take(owner, WHO, point, now_ms)


def shown(series):
    text = b"".join(series.expose()).decode()
    assert text.count("# TYPE") == len({line for line in text.splitlines() if line.startswith("# TYPE")})
    return list(text_string_to_metric_families(text))


def samples(series):
    return {
        (sample.name, *(value for key, value in sample.labels.items() if key not in WHO)): sample.value
        for family in shown(series)
        for sample in family.samples
    }


def test_who_pushed_stands_in_the_labels(series):
    assert take(series, gauge("org.apache.kafka.producer.io-wait", 2.5, node_id="1")) is None
    [family] = shown(series)
    [sample] = family.samples
    assert (sample.name, sample.value, family.type) == ("client_org_apache_kafka_producer_io_wait", 2.5, "gauge")
    assert sample.labels == {"client_instance_id": "i", **WHO, "node_id": "1"}


def test_deltas_add_up_and_totals_take_over(series):
    for value in (5, 0, 7):
        take(series, total("a.total", value))
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


def test_histograms(series):
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


def test_nobody_takes_the_name_of_another_kind(series):
    take(series, histogram((1, 2, 3)))
    assert take(series, gauge("h")) == take(series, gauge("h.sum")) == "conflict"
    take(series, gauge("x_count"))
    assert series.take("i", WHO, histogram((1, 2, 3))._replace(name="x"), 0.0) == "conflict"
    take(series, gauge("mixed"), "one")
    assert take(series, total("mixed", 1.0), "two") is None
    assert {family.name: family.type for family in shown(series)}["client_mixed"] == "unknown"


def test_names_that_are_none_and_labels_that_lie(series):
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
        **WHO,
        "a_b": "later",
        "name__": "stolen",
        "x": "\ufffd[31m\ufffd",
    }


def test_values_are_escaped_and_cut(series):
    take(series, gauge("m", a='x"\\\ny', b="z" * 1000))
    [sample] = shown(series)[0].samples
    assert sample.labels["a"] == 'x"\\\ny' and sample.labels["b"] == "z" * client_series.LABEL_CHARS_MAX
    assert take(series, gauge("n" * 300)) == "too_long"
    assert take(series, gauge("m", **{f"l{index}": "z" * 300 for index in range(6)})) == "too_long"


def test_there_is_a_limit_per_client_and_for_all(series, monkeypatch):
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


def test_what_is_not_pushed_again_goes(series):
    take(series, gauge("old"), now_ms=0.0)
    take(series, gauge("new"), now_ms=0.0)
    take(series, gauge("new"), now_ms=100.0)
    series.forget("i", before_ms=50.0)
    assert [family.name for family in shown(series)] == ["client_new"] and len(series) == 1


def test_thousands_come_in_pieces_and_may_change_between_them(series):
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
