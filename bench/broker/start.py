"""Time from process start to the first acknowledged record, with a formatted, empty data directory."""

from __future__ import annotations

import compileall
import shutil
from dataclasses import dataclass
from pathlib import Path

import headrace
from bench.broker.first_record import start_to_first_record
from bench.line import Figure, Measurement, Options
from bench.systems.servers import KAFKA, Broker, System, stop_cleanly


@dataclass(frozen=True)
class Start:
    name: str = "start"
    title: str = "process start to first acknowledged record"
    figures: tuple[Figure, ...] = (Figure("start_s", "s", False, goal=1 / 4, digits=2),)
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = True
    warm_rounds: int = 0

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, Broker)
        formatted = options.work / f"{system.name}-formatted"
        fresh = options.work / f"{system.name}-start"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            if not formatted.exists():
                _format(system, formatted)
            shutil.copytree(formatted / "data", fresh / "data")
            return Measurement({"start_s": _start(system, fresh, topic)})
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _format(system: Broker, directory: Path) -> None:
    """Format the directory by a first start and a clean stop.

    This also brings files and programs into the page cache, for both servers. Headrace gets its bytecode compiled, as
    after an installation, even if the environment forbids Python to write it.
    """
    compileall.compile_dir(headrace.__path__[0], quiet=1)
    process = system.spawn(directory.absolute())
    try:
        process.start()
        stop_cleanly(process)
    finally:
        process.close()


def _start(system: Broker, directory: Path, topic: str) -> float:
    process = system.spawn(directory.absolute())
    try:
        return start_to_first_record(process, topic, create=True).seconds
    finally:
        process.kill()
        process.close()
