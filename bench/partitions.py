"""Ten thousand partitions on one node: created, idle, and reopened by a new process."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass

from bench.contestants import KAFKA, Broker, Contestant, Process, stop_cleanly
from bench.line import Figure, Measured, Options
from bench.probe import start_to_first_record
from bench.processes import allow_open_files, idle_percent, rss_bytes
from bench.wire import Wire, create_topic, wait_until_served

FILES_PER_PARTITION = 1  # for Kafka: the log itself; its indexes are mapped and closed
SPARE_FILES = 1000
SETTLE_S = 3.0


@dataclass(frozen=True)
class ManyPartitions:
    name: str = "partitions-10k"
    title: str = "10,000 partitions"
    figures: tuple[Figure, ...] = (
        Figure("create_s", "create until all are served, s", False, goal=1.0, digits=1),
        Figure("restart_s", "restart to first acknowledged record, s", False, goal=1.0, digits=1),
        Figure("cpu_percent", "CPU while idle, % of a core", False, goal=1.0, digits=2),
        Figure("rss_mb", "resident memory, MB", False, goal=1.0),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = True
    warm_rounds: int = 0
    rounds_max: int = 1  # a round takes minutes, most of them Kafka's

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        assert isinstance(contestant, Broker)
        allow_open_files(options.loop_topics * options.loop_partitions * FILES_PER_PARTITION + SPARE_FILES)
        directory = options.work / f"{contestant.name}-{topic}"
        process = contestant.spawn(directory.absolute())
        names = [f"{topic}-{number}" for number in range(options.loop_topics)]
        try:
            process.start()
            return self._measure(process, names, options)
        finally:
            process.kill()
            process.close()
            shutil.rmtree(directory, ignore_errors=True)

    def _measure(self, process: Process, names: list[str], options: Options) -> Measured:
        partitions = options.loop_partitions
        create_s = create_and_wait(process.port, names, partitions)
        began = time.monotonic()
        stop_cleanly(process)
        stop_s = time.monotonic() - began
        restart_s = start_to_first_record(process, names[-1], (partitions - 1,)).seconds
        with Wire(process.port) as wire:
            for name in names:
                wait_until_served(wire, name, partitions)
        time.sleep(min(SETTLE_S, options.idle_seconds))
        cpu_percent = idle_percent(process.pid, options.idle_seconds)
        figures = {
            "create_s": create_s,
            "restart_s": restart_s,
            "cpu_percent": cpu_percent,
            "rss_mb": rss_bytes(process.pid) / 1e6,
        }
        return Measured(figures, {"stop_s": stop_s, "partitions": len(names) * partitions})


def create_and_wait(port: int, names: list[str], partitions: int) -> float:
    """Return the seconds until all partitions are served, which is long after the responses."""
    began = time.monotonic()
    with Wire(port) as wire:
        for name in names:
            create_topic(wire, name, partitions)
        for name in names:
            wait_until_served(wire, name, partitions)
    return time.monotonic() - began
