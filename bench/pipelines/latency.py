"""Latency of the pipeline: from the creation of an order's record until its enriched row can be read."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from bench.errors import BenchFailed
from bench.pipelines.topic_reader import TopicReader, json_value
from headrace.demo.shop.events import PARTITIONS
from headrace.demo.shop.topics import ORDERS

MS_PER_S = 1000.0
SHOWN_MAX = 3


def arrivals(reader: TopicReader, orders: int, seconds_max: float) -> dict[int, float]:
    """Return when each order could first be read, in ms since the epoch, by order id; fewer if time runs out."""
    arrived: dict[int, float] = {}
    deadline = time.monotonic() + seconds_max
    while len(arrived) < orders and time.monotonic() < deadline:
        message = reader.next()
        if message is not None:
            arrived.setdefault(json_value(message)["id"], time.time() * MS_PER_S)
    return arrived


def order_times(port: int) -> dict[int, float]:
    """Return when the records of orders were created, in ms since the epoch, by order id."""
    from confluent_kafka import TIMESTAMP_CREATE_TIME

    created: dict[int, float] = {}
    with TopicReader(port, ORDERS, partitions=PARTITIONS) as reader:
        for message in reader.read_to_the_end():
            kind, time_ms = message.timestamp()
            if kind != TIMESTAMP_CREATE_TIME:
                raise BenchFailed(f"{ORDERS} does not keep the creation times of its records")
            created[json_value(message)["id"]] = float(time_ms)
    return created


def latencies(created: Mapping[int, float], arrived: Mapping[int, float], warm_ms: float) -> list[float]:
    """Return the latencies in ms of the orders created at least `warm_ms` after the first one.

    Raise BenchFailed unless every order has its row and some orders count.
    """
    lost = sorted(created.keys() - arrived.keys())
    if lost or not created:
        raise BenchFailed(f"{len(lost)} of {len(created)} orders have no result, such as {lost[:SHOWN_MAX]}")
    warm_end = min(created.values()) + warm_ms
    counted = [arrived[order] - time_ms for order, time_ms in created.items() if time_ms >= warm_end]
    if not counted:
        raise BenchFailed("no order was created after the warm-up")
    return counted


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile: the smallest value with at least this share of values at or below it."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
