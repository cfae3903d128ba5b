"""Event loop lag of a node, from the histogram that it exports."""

from __future__ import annotations

import time
import urllib.request

from bench.errors import BenchFailed
from bench.systems.servers import Process
from headrace.testing.processes import LOOPBACK, NodeProcess

METRIC = "headrace_loop_lag_seconds"
FIRST_PROBE_S_MAX, PROBE_PAUSE_S = 5.0, 0.01
LAG_QUANTILE = 0.999


def quantile(cumulative: dict[float, float], share: float) -> float:
    """Return the upper bound of the bucket that contains this quantile."""
    total = max(cumulative.values(), default=0.0)
    if total <= 0:
        raise BenchFailed("the node has not measured any lag")
    return min(bound for bound, count in cumulative.items() if count >= share * total)


def lag_buckets(process: Process) -> dict[float, float]:
    """Return the cumulative lag histogram since the start; wait for the first probe of a node that has just started."""
    deadline = time.monotonic() + FIRST_PROBE_S_MAX
    while not any((found := _read_buckets(process)).values()) and time.monotonic() < deadline:
        time.sleep(PROBE_PAUSE_S)
    return found


def _read_buckets(process: Process) -> dict[float, float]:
    """Return the histogram from the metrics URL that the node announces."""
    assert isinstance(process, NodeProcess), "only Headrace exports this metric"
    words = process.announcement.split()
    url = next(word for word in words if word.startswith("http://")).replace("localhost", LOOPBACK)
    with urllib.request.urlopen(url, timeout=30) as response:
        text = response.read().decode()
    found = {}
    for line in text.splitlines():
        if line.startswith(f"{METRIC}_bucket"):
            bound = line.partition('le="')[2].partition('"')[0]
            found[float(bound)] = float(line.split()[-1])
    if not found:
        raise BenchFailed(f"the node does not export {METRIC}")
    return found
