"""The node's metrics in Prometheus' exposition format, written by prometheus-client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from headrace.base.metrics import Counter, Family, Histogram, Metrics

CONTENT_TYPE = CONTENT_TYPE_LATEST


class _Ours(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return [_export(family) for family in self._metrics if family.is_exported]


async def expose(metrics: Metrics) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Ours(metrics))
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    pieces = [generate_latest(registry)]
    for text in metrics.texts:
        for piece in text():
            pieces.append(piece)
            await asyncio.sleep(0)  # clients may have thousands of series: let other tasks run
    return b"".join(pieces)


def _export(family: Family) -> Metric:
    labels = [name for name, _ in next(iter(family.members), ())]
    members = [([value for _, value in key], metric) for key, metric in family.members.items()]
    if family.kind == "histogram":
        histograms = HistogramMetricFamily(family.name, family.help, labels=labels)
        for values, metric in members:
            assert isinstance(metric, Histogram)
            histograms.add_metric(values, _buckets(metric), metric.total)
        return histograms
    if family.kind == "counter":
        counters = CounterMetricFamily(family.name.removesuffix("_total"), family.help, labels=labels)
        for values, metric in members:
            assert isinstance(metric, Counter)
            counters.add_metric(values, metric.value)
        return counters
    gauges = GaugeMetricFamily(family.name, family.help, labels=labels)
    for values, metric in members:
        assert callable(metric)
        gauges.add_metric(values, metric())
    return gauges


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    seen, buckets = 0, []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        seen += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(seen)))
    return buckets
