"""Request times for /metrics under the names of jmx_exporter: Kafka's RequestMetrics, percentiles in milliseconds.

If the page is read at least once a minute, percentiles cover the last one to two minutes. Kafka's cover recent requests too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from headrace.base.metrics import LATENCY_BUCKETS, Histogram, Metrics
from headrace.observe.text_format import family, labels

WINDOW_S = 60.0
QUANTILES = {"0.50": 0.5, "0.75": 0.75, "0.95": 0.95, "0.98": 0.98, "0.99": 0.99, "0.999": 0.999}

# Names of the histograms, labelled by request, that the dispatcher fills.
IMMEDIATE_REQUEST_SECONDS = "headrace_request_seconds"
DEFERRED_REQUEST_SECONDS = "headrace_deferred_request_seconds"
DEFERRED_REQUEST_LOCAL_SECONDS = "headrace_deferred_request_local_seconds"
DEFERRED_REQUEST_REMOTE_SECONDS = "headrace_deferred_request_remote_seconds"

_BOUNDS = (0.0, *LATENCY_BUCKETS)  # the first bucket holds phases that took no time

Counts = list[int]  # by bucket


class RecentQuantiles:
    """Percentiles of the recent observations of a histogram."""

    def __init__(self) -> None:
        self._base: Counts = [0] * (len(_BOUNDS) + 1)  # counts at the start of the window
        self._next: Counts = self._base  # counts at the start of the next window
        self._rotated_at = float("-inf")

    def update(self, counts: Counts, now: float) -> list[float]:
        """Return the value of each of QUANTILES in seconds, 0 if nothing was observed.

        Values are interpolated linearly within a bucket.
        """
        if now - self._rotated_at >= WINDOW_S:
            self._base, self._next, self._rotated_at = self._next, list(counts), now
        recent = [count - base for count, base in zip(counts, self._base, strict=True)]
        total = sum(recent)
        return [self._quantile(recent, total * share) for share in QUANTILES.values()]

    def _quantile(self, recent: Counts, target: float) -> float:
        seen, low = 0, 0.0
        for count, high in zip(recent, (*_BOUNDS, _BOUNDS[-1]), strict=True):
            if count and seen + count >= target:
                return low + (high - low) * (target - seen) / count
            seen, low = seen + count, high
        return 0.0


class RequestTimes:
    """A page of /metrics: total, local and remote time of each kind of request.

    A request whose response is ready in the call that received it has only a local time; a parked one also has a remote time, as in
    Kafka. There are no request and response queues between threads here, so the times spent in them are 0.
    """

    def __init__(self, metrics: Metrics, now: Callable[[], float]) -> None:
        self._metrics = metrics
        self._now = now
        self._recent: dict[tuple[str, str], RecentQuantiles] = {}

    def expose(self) -> Iterator[bytes]:
        times = self._times()
        in_no_queue = {request: _instant(sum(counts)) for request, counts in times["totaltimems"].items()}
        for phase in ("requestqueuetimems", "responsequeuetimems", "responsesendtimems"):
            times[phase] = in_no_queue
        for phase, by_request in times.items():
            yield from self._phase(phase, by_request)

    def _times(self) -> dict[str, dict[str, Counts]]:
        later = [
            self._by_request(name)
            for name in (DEFERRED_REQUEST_SECONDS, DEFERRED_REQUEST_LOCAL_SECONDS, DEFERRED_REQUEST_REMOTE_SECONDS)
        ]
        found: dict[str, dict[str, Counts]] = dict(
            zip(("totaltimems", "localtimems", "remotetimems"), later, strict=True)
        )
        for request, counts in self._by_request(IMMEDIATE_REQUEST_SECONDS).items():
            for phase, more in zip(found, (counts, counts, _instant(sum(counts))), strict=True):
                found[phase][request] = _sum(found[phase].get(request), more)
        for by_request in found.values():
            if "Fetch" in by_request:  # as in Kafka: consumers, followers, and the sum of both
                by_request["FetchConsumer"] = by_request["Fetch"]
                by_request["Fetch"] = _sum(by_request.get("FetchFollower"), by_request["Fetch"])
        return found

    def _by_request(self, name: str) -> dict[str, Counts]:
        return {
            dict(key)["request"]: [0, *metric.counts]
            for key, metric in self._metrics.members(name).items()
            if isinstance(metric, Histogram)
        }

    def _phase(self, phase: str, times: Mapping[str, Counts]) -> Iterator[bytes]:
        name, now = f"kafka_network_requestmetrics_{phase}", self._now()
        samples: list[tuple[str, float]] = []
        for request, counts in sorted(times.items()):
            recent = self._recent.setdefault((phase, request), RecentQuantiles())
            for quantile, value in zip(QUANTILES, recent.update(counts, now), strict=True):
                samples.append((labels(request=request, quantile=quantile), round(value * 1000, 4)))
        yield from family(name, "Recent percentiles in milliseconds, by request.", "gauge", samples)
        totals = ((labels(request=request), sum(counts)) for request, counts in sorted(times.items()))
        yield from family(f"{name}_count", "Requests that were timed, by request.", "counter", totals)


def _sum(one: Counts | None, other: Counts) -> Counts:
    return other if one is None else [a + b for a, b in zip(one, other, strict=True)]


def _instant(count: int) -> Counts:
    """Return the bucket counts of `count` requests that took no time."""
    return [count] + [0] * len(_BOUNDS)
