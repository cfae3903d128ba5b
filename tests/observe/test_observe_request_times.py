"""Request times under Kafka's metric names."""

from __future__ import annotations

import pytest

from headrace.base.metrics import Metrics, RecentRate
from headrace.observe.request_times import WINDOW_S, RequestTimes
from headrace.server.dispatch import RequestMetrics


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _page(times: RequestTimes) -> dict[str, float]:
    lines = b"".join(times.expose()).decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def test_a_parked_request_has_a_local_and_a_remote_time() -> None:
    metrics, clock = Metrics(), Clock()
    counted = RequestMetrics(metrics, "JoinGroup", 9)
    counted.deferred.observe(0.9)
    counted.deferred_local.observe(0.0009)
    counted.deferred_remote.observe(0.9)
    page = _page(RequestTimes(metrics, clock))
    prefix = "kafka_network_requestmetrics_"
    assert page[f'{prefix}totaltimems_count{{request="JoinGroup"}}'] == 1
    assert 500 < page[f'{prefix}totaltimems{{request="JoinGroup",quantile="0.99"}}'] <= 1000
    assert 0.5 < page[f'{prefix}localtimems{{request="JoinGroup",quantile="0.99"}}'] <= 1
    assert 500 < page[f'{prefix}remotetimems{{request="JoinGroup",quantile="0.99"}}'] <= 1000
    assert page[f'{prefix}requestqueuetimems{{request="JoinGroup",quantile="0.99"}}'] == 0


def test_a_request_with_an_immediate_response_has_no_remote_time() -> None:
    metrics, clock = Metrics(), Clock()
    RequestMetrics(metrics, "Produce", 9).times.observe(0.004)
    page = _page(RequestTimes(metrics, clock))
    prefix = "kafka_network_requestmetrics_"
    assert 2.5 < page[f'{prefix}totaltimems{{request="Produce",quantile="0.50"}}'] <= 5
    assert page[f'{prefix}localtimems{{request="Produce",quantile="0.50"}}'] > 2.5
    assert page[f'{prefix}remotetimems{{request="Produce",quantile="0.50"}}'] == 0
    assert page[f'{prefix}remotetimems_count{{request="Produce"}}'] == 1


def test_percentiles_cover_only_recent_windows() -> None:
    metrics, clock = Metrics(), Clock()
    times = RequestTimes(metrics, clock)
    counted = RequestMetrics(metrics, "Produce", 9)
    counted.times.observe(4.0)
    name = 'kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.50"}'
    assert _page(times)[name] > 2500
    for _ in range(2):
        clock.now += WINDOW_S
        _page(times)
    counted.times.observe(0.0001)
    assert 0 < _page(times)[name] <= 0.1


def test_fetch_times_are_reported_for_consumers_followers_and_in_total() -> None:
    metrics, clock = Metrics(), Clock()
    RequestMetrics(metrics, "Fetch", 12).times.observe(0.001)
    RequestMetrics(metrics, "FetchFollower", 17).deferred.observe(0.5)
    page = _page(RequestTimes(metrics, clock))
    for request, count in {"Fetch": 2, "FetchConsumer": 1, "FetchFollower": 1}.items():
        assert page[f'kafka_network_requestmetrics_totaltimems_count{{request="{request}"}}'] == count


def test_a_recent_rate_covers_only_the_last_window() -> None:
    clock, metrics = Clock(), Metrics()
    counter = metrics.counter("connections_total", "")
    rate = RecentRate(counter, clock)
    assert rate() == 0
    counter.value, clock.now = 300, 30.0
    assert rate() == pytest.approx(10)
    clock.now = 60.0
    assert rate() == 0
