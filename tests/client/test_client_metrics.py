"""Sensors over samples of 30 seconds: rates, averages and maxima expire, totals do not."""

from __future__ import annotations

from math import isnan

import pytest

from headrace.client.wire.metrics import WINDOW_S, Metrics


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def test_sensors_report_rate_total_average_and_maximum(time: Time) -> None:
    metrics = Metrics(time)
    sensor = metrics.sensor("x", "rate", "total", "avg", "max")
    assert isnan(metrics.read()["x-avg"]) and isnan(metrics.read()["x-max"])
    assert metrics.read()["x-rate"] == metrics.read()["x-total"] == 0
    for value in (1, 5, 3):
        sensor.record(value)
    assert metrics.read() == {"x-avg": 3, "x-max": 5, "x-rate": 9 / WINDOW_S, "x-total": 9}
    sensor.record(100, 10)  # ten records of ten each
    assert metrics.read()["x-avg"] == 109 / 13 and metrics.read()["x-max"] == 10


def test_samples_expire_after_their_window_but_totals_remain(time: Time) -> None:
    metrics = Metrics(time)
    sensor = metrics.sensor("x", "rate", "total", "avg", "max")
    sensor.record(60)
    time.now += WINDOW_S
    sensor.record(30)
    time.now += WINDOW_S / 2
    assert metrics.read() == {"x-avg": 45, "x-max": 60, "x-rate": 2, "x-total": 90}
    time.now += WINDOW_S / 2
    assert metrics.read() == {"x-avg": 30, "x-max": 30, "x-rate": 1, "x-total": 90}
    time.now += 10 * WINDOW_S
    read = metrics.read()
    assert read["x-total"] == 90 and read["x-rate"] == 0 and isnan(read["x-avg"])


def test_gauges_are_evaluated_when_metrics_are_read(time: Time) -> None:
    metrics = Metrics(time)
    held = [1]
    metrics.gauge("held", lambda: held[0])
    held[0] = 7
    assert metrics.read() == {"held": 7}
