"""Event loop lag of a node while the page cache is filled at full speed and thousands of partitions are created."""

from __future__ import annotations

import shutil
import time
import urllib.request
from dataclasses import dataclass

from bench.contestants import Broker, Contestant, Process
from bench.frames import make_batch, records_that_fit
from bench.line import IN_FLIGHT, KIB, Figure, Measured, Options
from bench.load import Running, Span
from bench.partitions import create_and_wait
from bench.produce import produce_load
from bench.wire import BenchFailed
from headrace.testing.processes import LOOPBACK

METRIC = "headrace_loop_lag_seconds"
SECONDS_MAX = 300.0
SHARE = 0.999


@dataclass(frozen=True)
class LoopLag:
    name: str = "loop"
    title: str = "event loop lag during 64 KB batches at full speed and the creation of 10,000 partitions"
    figures: tuple[Figure, ...] = (
        Figure("lag_p999_ms", "lag p99.9, ms, upper bound", False, goal_absolute=50.0, digits=1),
        Figure("filled_mb_per_s", "MB/s of the load", True),
        Figure("message_p999_ms", "p99.9 of single messages, ms", False, digits=1),
        Figure("create_s", "until all are served, s", False, digits=1),
    )
    against: tuple[str, ...] = ()
    alone: bool = True
    warm_rounds: int = 0

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        assert isinstance(contestant, Broker)
        try:
            return self._measure(contestant, topic, options)
        finally:
            contestant.close()

    def _measure(self, contestant: Broker, topic: str, options: Options) -> Measured:
        bytes_max = min(options.filler_bytes_max, shutil.disk_usage(options.work).free // 2)
        filler, single = f"{topic}-filler", f"{topic}-single"
        contestant.open_topic(filler, 1)
        contestant.open_topic(single, 1)
        batch = make_batch(records_that_fit(64 * KIB, KIB), KIB)
        before = lag_buckets(contestant.process)
        port, pid = contestant.port, contestant.pid
        loads = [
            Running(produce_load(filler, [batch], 1, IN_FLIGHT), port, pid, Span(SECONDS_MAX, 0.0, bytes_max)),
            Running(produce_load(single, [make_batch(1, 100)], 1, 1), port, pid, Span(SECONDS_MAX)),
        ]
        try:
            time.sleep(options.seconds)
            names = [f"{topic}-many-{number}" for number in range(options.loop_topics)]
            create_s = create_and_wait(contestant.port, names, options.loop_partitions)
            time.sleep(options.seconds)
        finally:
            for load in loads:
                load.stop()
            filled, answered = [load.outcome() for load in loads]
        after = lag_buckets(contestant.process)
        lags = {bound: after[bound] - before.get(bound, 0.0) for bound in after}
        return Measured(
            {
                "lag_p999_ms": quantile(lags, SHARE) * 1000,
                "filled_mb_per_s": filled.mb_per_s,
                "message_p999_ms": answered.p999_us / 1000,
                "create_s": create_s,
            },
            {
                "lags": {str(bound): count for bound, count in lags.items()},
                "filled": filled.as_json(),
                "single": answered.as_json(),
                "partitions": options.loop_topics * options.loop_partitions,
            },
        )


def quantile(cumulative: dict[float, float], share: float) -> float:
    """Return the upper bound of the bucket that contains this quantile."""
    total = max(cumulative.values(), default=0.0)
    if total <= 0:
        raise BenchFailed("the node measured no lag at all")
    return min(bound for bound, count in cumulative.items() if count >= share * total)


def lag_buckets(process: Process) -> dict[float, float]:
    """Return the cumulative lag histogram since the start, from the metrics URL that the node announces."""
    words = getattr(process, "announcement", "").split()
    url = next(word for word in words if word.startswith("http://")).replace("localhost", LOOPBACK)
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    found = {}
    for line in text.splitlines():
        if line.startswith(f"{METRIC}_bucket"):
            bound = line.partition('le="')[2].partition('"')[0]
            found[float(bound)] = float(line.split()[-1])
    if not found:
        raise BenchFailed(f"the node does not export {METRIC}")
    return found
