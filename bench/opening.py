"""Time from process start to first acknowledged records with 50 GB on disk, after a clean stop and after kill -9."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.contestants import KAFKA, Broker, Contestant, stop_cleanly
from bench.line import Figure, Measured, Options
from bench.planted import plant_partition, write_checkpoints
from bench.probe import start_to_first_record
from bench.wire import BenchFailed, Wire, create_topic, wait_until_served

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

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        assert isinstance(contestant, Broker)
        empty = options.work / f"{contestant.name}-{self.name}"
        fresh = options.work / f"{contestant.name}-{topic}"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            if not empty.exists():
                _make_empty(contestant, empty, options.open_partitions)
            shutil.copytree(empty / "data", fresh / "data")
            return _open_twice(contestant, fresh, options)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _make_empty(contestant: Broker, directory: Path, partitions: int) -> None:
    """Let the server create the topic and stop cleanly."""
    process = contestant.spawn(directory.absolute())
    try:
        process.start()
        with Wire(process.port) as wire:
            create_topic(wire, TOPIC, partitions)
            wait_until_served(wire, TOPIC, partitions)
        stop_cleanly(process)
    finally:
        process.close()


def _open_twice(contestant: Broker, directory: Path, options: Options) -> Measured:
    data_dir = directory / "data"
    partitions = range(options.open_partitions)
    planted = {
        partition: plant_partition(data_dir / f"{TOPIC}-{partition}", options.open_segments, options.open_active_bytes)
        for partition in partitions
    }
    ends = {partition: made.log_end for partition, made in planted.items()}
    write_checkpoints(data_dir, TOPIC, ends, ends)
    process = contestant.spawn(directory.absolute())
    try:
        clean = start_to_first_record(process, TOPIC, partitions)
        process.kill()
        # Rolling syncs the sealed segments, and little else syncs: in a long-running server, a kill finds the recovery
        # point here.
        bases = {partition: made.active_base for partition, made in planted.items()}
        write_checkpoints(data_dir, TOPIC, bases, ends)
        killed = start_to_first_record(process, TOPIC, partitions)
    finally:
        process.kill()
        process.close()
    sizes = [path.stat().st_size for path in data_dir.glob(f"{TOPIC}-*/*.log")]
    if clean.offsets != list(ends.values()) or killed.offsets != [end + 1 for end in ends.values()]:
        raise BenchFailed(f"of a log up to {ends} the ends are {clean.offsets}, and {killed.offsets} after kill -9")
    figures = {"clean_s": clean.seconds, "killed_s": killed.seconds}
    return Measured(figures, {"bytes": sum(sizes), "segments": len(sizes)})
