"""Event loop lag of a node while the page cache is filled at full speed and thousands of partitions are created."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass

from bench.broker.partitions import create_and_wait
from bench.line import Figure, Measurement, Options
from bench.load.frames import KIB, make_batch, records_that_fit
from bench.load.generator import RunningLoad, Span, target_of
from bench.load.produce import IN_FLIGHT, produce_load
from bench.systems.loop_lag import LAG_QUANTILE, lag_buckets, quantile
from bench.systems.servers import Broker, System

SECONDS_MAX = 300.0


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

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, Broker)
        try:
            return self._measure(system, topic, options)
        finally:
            system.close()

    def _measure(self, system: Broker, topic: str, options: Options) -> Measurement:
        bytes_max = min(options.filler_bytes_max, shutil.disk_usage(options.work).free // 2)
        filler, single = f"{topic}-filler", f"{topic}-single"
        system.create_topic(filler, 1)
        system.create_topic(single, 1)
        batch = make_batch(records_that_fit(64 * KIB, KIB), KIB)
        before = lag_buckets(system.process)
        target = target_of(system)
        loads = [
            RunningLoad(produce_load(filler, [batch], 1, IN_FLIGHT), target, Span(SECONDS_MAX, 0.0, bytes_max)),
            RunningLoad(produce_load(single, [make_batch(1, 100)], 1, 1), target, Span(SECONDS_MAX)),
        ]
        try:
            time.sleep(options.seconds)
            names = [f"{topic}-many-{number}" for number in range(options.loop_topics)]
            create_s = create_and_wait(system.port, names, options.loop_partitions)
            time.sleep(options.seconds)
        finally:
            for load in loads:
                load.stop()
            filled, single_outcome = [load.outcome() for load in loads]
        after = lag_buckets(system.process)
        lags = {bound: after[bound] - before.get(bound, 0.0) for bound in after}
        return Measurement(
            {
                "lag_p999_ms": quantile(lags, LAG_QUANTILE) * 1000,
                "filled_mb_per_s": filled.mb_per_s,
                "message_p999_ms": single_outcome.p999_us / 1000,
                "create_s": create_s,
            },
            {
                "lags": {str(bound): count for bound, count in lags.items()},
                "filled": filled.as_json(),
                "single": single_outcome.as_json(),
                "partitions": options.loop_topics * options.loop_partitions,
            },
        )
