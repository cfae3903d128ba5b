"""Ten thousand partitions on one node: created, idle, and reopened by a new process."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass

from bench.broker.first_record import start_to_first_record
from bench.line import Figure, Measurement, Options
from bench.systems.processes import allow_open_files, idle_percent, rss_bytes
from bench.systems.requests import Connection, create_topic, wait_until_served
from bench.systems.servers import KAFKA, Broker, Process, System, stop_cleanly

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

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, Broker)
        allow_open_files(options.loop_topics * options.loop_partitions * FILES_PER_PARTITION + SPARE_FILES)
        directory = options.work / f"{system.name}-{topic}"
        process = system.spawn(directory.absolute())
        names = [f"{topic}-{number}" for number in range(options.loop_topics)]
        try:
            process.start()
            return self._measure(process, names, options)
        finally:
            process.kill()
            process.close()
            shutil.rmtree(directory, ignore_errors=True)

    def _measure(self, process: Process, names: list[str], options: Options) -> Measurement:
        partitions = options.loop_partitions
        create_s = create_and_wait(process.port, names, partitions)
        began = time.monotonic()
        stop_cleanly(process)
        stop_s = time.monotonic() - began
        restart_s = start_to_first_record(process, names[-1], (partitions - 1,)).seconds
        with Connection(process.port) as connection:
            for name in names:
                wait_until_served(connection, name, partitions)
        time.sleep(min(SETTLE_S, options.idle_seconds))
        cpu_percent = idle_percent(process.pid, options.idle_seconds)
        figures = {
            "create_s": create_s,
            "restart_s": restart_s,
            "cpu_percent": cpu_percent,
            "rss_mb": rss_bytes(process.pid) / 1e6,
        }
        return Measurement(figures, {"stop_s": stop_s, "partitions": len(names) * partitions})


def create_and_wait(port: int, names: list[str], partitions: int) -> float:
    """Return the seconds until all partitions are served, which is long after the responses."""
    began = time.monotonic()
    with Connection(port) as connection:
        for name in names:
            create_topic(connection, name, partitions)
        for name in names:
            wait_until_served(connection, name, partitions)
    return time.monotonic() - began
