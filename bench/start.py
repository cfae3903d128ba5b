"""Time from process start to the first acknowledged record, with a formatted, empty data directory."""

from __future__ import annotations

import compileall
import shutil
from dataclasses import dataclass
from pathlib import Path

import headrace
from bench.contestants import KAFKA, Broker, Contestant, stop_cleanly
from bench.line import Figure, Measured, Options
from bench.probe import start_to_first_record


@dataclass(frozen=True)
class Start:
    name: str = "start"
    title: str = "process start to first acknowledged record"
    figures: tuple[Figure, ...] = (Figure("start_s", "s", False, goal=1 / 4, digits=2),)
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = True
    warm_rounds: int = 0

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        assert isinstance(contestant, Broker)
        formatted = options.work / f"{contestant.name}-formatted"
        fresh = options.work / f"{contestant.name}-start"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            if not formatted.exists():
                _format(contestant, formatted)
            shutil.copytree(formatted / "data", fresh / "data")
            return Measured({"start_s": _start(contestant, fresh, topic)})
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _format(contestant: Broker, directory: Path) -> None:
    """Format the directory by a first start and a clean stop.

    This also brings files and programs into the page cache, for both servers. Headrace gets its bytecode compiled, as
    after an installation, even if the environment forbids Python to write it.
    """
    compileall.compile_dir(headrace.__path__[0], quiet=1)
    process = contestant.spawn(directory.absolute())
    try:
        process.start()
        stop_cleanly(process)
    finally:
        process.close()


def _start(contestant: Broker, directory: Path, topic: str) -> float:
    process = contestant.spawn(directory.absolute())
    try:
        return start_to_first_record(process, topic, create=True).seconds
    finally:
        process.kill()
        process.close()
