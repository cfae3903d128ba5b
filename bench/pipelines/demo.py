"""The demo, as `make run` starts it after installation: time until its first readable result, and memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.errors import BenchFailed, CannotRun
from bench.line import Figure, Measurement, Options
from bench.pipelines.topic_reader import TopicReader, reader_missing
from bench.spark.lines import spark_missing
from bench.systems.clients import MeasuredClient, server_named
from bench.systems.processes import rss_bytes
from bench.systems.requests import Connection, has_leaders
from bench.systems.servers import HEADRACE, Broker, System
from headrace.base.errors import HeadraceError
from headrace.demo.folders import Folders
from headrace.demo.processes import Register
from headrace.demo.shop.events import PARTITIONS
from headrace.demo.shop.topics import RESULTS
from headrace.demo.supervisor import GENERATOR, NODE
from headrace.testing.processes import free_port

FIRST_RESULT_S_GOAL = 90.0
MEMORY_MB_GOAL = 200.0
FIRST_RESULT_S_MAX = 300.0
END_S_MAX = 180.0  # the demo stops its processes one after the other
TOPICS_POLL_S = 0.02
WATCH_POLL_S = 0.5
LOG_SHOWN_CHARACTERS = 3000
MEGABYTE = 1e6


@dataclass(frozen=True)
class DemoMeasurement:
    first_result_s: float  # seconds since the start of its process
    small_bytes: int  # memory of node and generator
    all_bytes: int
    processes: int


class Demo:
    """The demo in a new folder. Its processes are in its register, or are descendants of those."""

    def __init__(self, folder: Path, rate: float) -> None:
        self._folder = folder
        self._rate = rate
        self._port = free_port()
        self._log = folder / "demo.log"
        self._folders = Folders(folder / "work", folder / ".headrace")
        self._register = Register(self._folders.shop / "processes.json")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Demo:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        command = [sys.executable, "-m", "headrace", "demo", "--plain", "--folder", str(self._folders.work)]
        command += ["--port", str(self._port), "--rate", str(self._rate)]
        self._began = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None
        try:
            self._process.terminate()
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S_MAX)
        finally:
            for one in self._register.left().values():  # each leads a separate session
                with suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
            shutil.rmtree(self._folder, ignore_errors=True)

    def first_result_s(self) -> float:
        """Wait for the first result and return its time in seconds since the start."""
        deadline = self._began + FIRST_RESULT_S_MAX
        self._wait_for_topics(deadline)
        with TopicReader(self._port, *RESULTS, partitions=PARTITIONS) as reader:
            while reader.next() is None:
                self._check(deadline)
            return time.monotonic() - self._began

    def watch(self, seconds: float) -> None:
        """Check for this many seconds that the demo keeps running."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._check(end + WATCH_POLL_S)
            time.sleep(WATCH_POLL_S)

    def memory(self, first_result_s: float) -> DemoMeasurement:
        """Return current resident memory, summed by process: shared pages count for each."""
        import psutil

        assert self._process is not None
        registered = self._register.left()
        try:
            small = sum(rss_bytes(registered[name].pid) for name in (NODE, GENERATOR))
        except (KeyError, OSError) as error:
            raise BenchFailed(f"the demo's node or generator is not running: {error}; {self._log_tail()}") from None
        sizes: dict[int, int] = {}
        for pid in (self._process.pid, *(one.pid for one in registered.values())):
            with suppress(psutil.NoSuchProcess):
                first = psutil.Process(pid)
                for one in (first, *first.children(recursive=True)):
                    with suppress(psutil.NoSuchProcess):
                        sizes[one.pid] = int(one.memory_info().rss)
        return DemoMeasurement(first_result_s, small, sum(sizes.values()), len(sizes))

    def _wait_for_topics(self, deadline: float) -> None:
        while True:
            with suppress(OSError, HeadraceError), Connection(self._port) as connection:
                if all(has_leaders(connection, topic) for topic in RESULTS):
                    return
            self._check(deadline)
            time.sleep(TOPICS_POLL_S)

    def _check(self, deadline: float) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise BenchFailed(f"the demo exited with code {self._process.returncode}: {self._log_tail()}")
        if time.monotonic() > deadline:
            raise BenchFailed(f"the demo had no result within {FIRST_RESULT_S_MAX:.0f} s: {self._log_tail()}")

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_SHOWN_CHARACTERS:]


class DemoRuns:
    """Runs of the demo that both lines share: a run measured for one line is kept for the other."""

    def __init__(self) -> None:
        self._kept: list[DemoMeasurement] = []

    def run(self, options: Options) -> DemoMeasurement:
        """Run the demo and keep its measurement."""
        with Demo(options.work.absolute() / "demo", options.shop_rate) as demo:
            first_result_s = demo.first_result_s()
            demo.watch(options.demo_seconds)
            measurement = demo.memory(first_result_s)
        self._kept.append(measurement)
        return measurement

    def take_kept(self, options: Options) -> DemoMeasurement:
        """Remove and return the oldest kept measurement; run the demo if there is none."""
        if not self._kept:
            self.run(options)
        return self._kept.pop(0)


@dataclass(frozen=True)
class DemoLine:
    runs: DemoRuns = field(repr=False)
    against: tuple[str, ...] = ()
    alone: bool = True
    warm_rounds: int = 0

    def measured_clients(self, servers: Mapping[str, Broker]) -> list[System]:
        reason = spark_missing() or reader_missing()
        if reason is not None:
            raise CannotRun(reason)
        return [MeasuredClient(HEADRACE, server_named(servers, HEADRACE))]


@dataclass(frozen=True)
class FirstResult(DemoLine):
    name: str = "pipeline-first-result"
    title: str = "the demo, installed: process start to the first readable result"
    figures: tuple[Figure, ...] = (Figure("first_result_s", "s", False, goal_absolute=FIRST_RESULT_S_GOAL, digits=1),)

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        return Measurement({"first_result_s": self.runs.run(options).first_result_s})


@dataclass(frozen=True)
class DemoMemory(DemoLine):
    name: str = "pipeline-memory"
    title: str = "the demo, one minute after its first result, at 1,000 events per second: resident memory"
    figures: tuple[Figure, ...] = (
        Figure("small_mb", "node and generator, MB", False, goal_absolute=MEMORY_MB_GOAL),
        Figure("all_mb", "all processes including Spark, MB", False),
    )

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        demo = self.runs.take_kept(options)
        figures = {"small_mb": demo.small_bytes / MEGABYTE, "all_mb": demo.all_bytes / MEGABYTE}
        return Measurement(figures, {"processes": demo.processes})
