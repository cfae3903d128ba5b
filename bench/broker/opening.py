"""Time from process start to first acknowledged records with 50 GB on disk, after a clean stop and after kill -9."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.broker.first_record import start_to_first_record
from bench.broker.prepared_logs import prepare_partition, write_checkpoints
from bench.errors import BenchFailed
from bench.line import Figure, Measurement, Options
from bench.systems.requests import Connection, create_topic, wait_until_served
from bench.systems.servers import KAFKA, Broker, System, stop_cleanly

TOPIC = "opened"


@dataclass(frozen=True)
class OpenLarge:
    name: str = "open-50g"
    title: str = "open 50 GB in 52 segments, of which 1 GB is not synced, to the first acknowledged records"
    figures: tuple[Figure, ...] = (
        Figure("clean_s", "after a clean stop, s", False, goal=1.0, digits=2),
        Figure("killed_s", "after kill -9, s", False, goal=1.0, digits=2),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = True
    warm_rounds: int = 0

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, Broker)
        empty = options.work / f"{system.name}-{self.name}"
        fresh = options.work / f"{system.name}-{topic}"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            if not empty.exists():
                _make_empty(system, empty, options.open_partitions)
            shutil.copytree(empty / "data", fresh / "data")
            return _open_twice(system, fresh, options)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _make_empty(system: Broker, directory: Path, partitions: int) -> None:
    """Let the server create the topic and stop cleanly."""
    process = system.spawn(directory.absolute())
    try:
        process.start()
        with Connection(process.port) as connection:
            create_topic(connection, TOPIC, partitions)
            wait_until_served(connection, TOPIC, partitions)
        stop_cleanly(process)
    finally:
        process.close()


def _open_twice(system: Broker, directory: Path, options: Options) -> Measurement:
    data_dir = directory / "data"
    partitions = range(options.open_partitions)
    prepared = {
        partition: prepare_partition(
            data_dir / f"{TOPIC}-{partition}", options.open_segments, options.open_active_bytes
        )
        for partition in partitions
    }
    ends = {partition: log.log_end for partition, log in prepared.items()}
    write_checkpoints(data_dir, TOPIC, ends, ends)
    process = system.spawn(directory.absolute())
    try:
        clean = start_to_first_record(process, TOPIC, partitions)
        process.kill()
        # A server syncs sealed segments when it rolls a new one, and little else: after a kill, the recovery point of a
        # long-running server is the base of the active segment.
        bases = {partition: log.active_base for partition, log in prepared.items()}
        write_checkpoints(data_dir, TOPIC, bases, ends)
        killed = start_to_first_record(process, TOPIC, partitions)
    finally:
        process.kill()
        process.close()
    sizes = [path.stat().st_size for path in data_dir.glob(f"{TOPIC}-*/*.log")]
    if clean.offsets != list(ends.values()) or killed.offsets != [end + 1 for end in ends.values()]:
        raise BenchFailed(
            f"logs that end at {ends} got their next record at {clean.offsets}, and at {killed.offsets} after kill -9"
        )
    figures = {"clean_s": clean.seconds, "killed_s": killed.seconds}
    return Measurement(figures, {"bytes": sum(sizes), "segments": len(sizes)})
