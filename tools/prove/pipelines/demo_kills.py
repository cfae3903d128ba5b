"""The demo under kill -9 at random moments: of its node, generator, driver, Spark, itself, or all at once.

It is restarted whenever nothing else restarts it. At the end its own check of the results must pass.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil

from headrace.demo.folders import Folders
from headrace.demo.processes import Register
from headrace.demo.results.checkpoints import position
from headrace.demo.stages import QUERIES
from headrace.demo.supervisor import GENERATOR, NODE, PIPELINES
from headrace.testing.processes import LOOPBACK, free_port

MAIN, SPARK, ALL = "main", "spark", "all"
KINDS = {NODE: 3, GENERATOR: 3, PIPELINES: 3, SPARK: 2, MAIN: 2, ALL: 3}
RATE = 2_000  # events per second while the number of events is unlimited
LEFT_OVER_S_MAX = 30.0
LAST_KILLS_SHARE = 0.3  # share of kills that hit a run which ends by itself
BLIND_PROBABILITY = 0.3  # probability of a kill that does not wait for progress of Spark
BLIND_S_MAX, AFTER_BATCH_S_MAX = 12.0, 3.0
PROGRESS_S_MAX = 300.0
END_S_MAX = 1_200.0
POLL_S = 0.1
RIGHT = "events in = events out"
SHOWN_CHARACTERS = 4_000
MEGABYTE = 1_000_000


class Demo:
    """`make run` across restarts. Its processes are in the register of its folder or descend from those."""

    def __init__(self, folder: Path, brokers: int = 1) -> None:
        self._folder = folder
        self._brokers = brokers
        self._port = free_port()
        self._log = folder / "make-run.log"
        self._process: subprocess.Popen[bytes] | None = None
        work = folder / "work"
        self.folders = Folders(work if brokers == 1 else work / f"brokers-{brokers}", folder / ".headrace", brokers)
        self.register = Register(self.folders.shop / "processes.json")
        self._sessions: set[int] = set()  # ids of system sessions, one for each registered process of every start
        self.starts = 0
        self.memory_bytes_max = 0

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "headrace", "demo", "--plain", "--port", str(self._port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--folder", str(self._folder / "work"), "--brokers", str(self._brokers), *arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1

    @property
    def bootstrap(self) -> str:
        """Return the address of the first node."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def kill(self, kind: str) -> bool:
        """Kill processes of this kind. Return False if there are none now."""
        self._record_sessions()
        if kind == MAIN:
            return self._kill_main()
        if kind == ALL:
            registered = list(self.register.left().values())
            done = self._kill_main()
            for one in registered:
                with suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
            return done
        found = self.register.left().get(PIPELINES if kind == SPARK else kind)
        if found is None:
            return False
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(found.pid)
            if kind == SPARK:
                jvms = [one for one in process.children(recursive=True) if one.name() == "java"]
                if not jvms:
                    return False
                process = jvms[0]
            process.kill()
            return True
        return False

    def _kill_main(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        self._process.kill()
        self._process.wait()
        return True

    def batches(self) -> int:
        """Return the number of batches that all queries have completed, from their checkpoints."""
        paths = (self.folders.checkpoints / query.pipeline / query.result.name for query in QUERIES)
        return sum(position(path).batch + 1 for path in paths)

    def _record_sessions(self) -> None:
        self._sessions |= {one.pid for one in self.register.left().values()}

    def left_over(self) -> list[str]:
        """Return the processes that still run in any session seen so far."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if process.status() != psutil.STATUS_ZOMBIE and os.getsid(process.pid) in self._sessions:
                    found.append(f"{process.pid} {process.name()}")
        return found

    def measure(self) -> None:
        """Update the maximum memory of node and generator."""
        self._record_sessions()
        registered = self.register.left()
        used = 0
        for name in (NODE, GENERATOR):
            with suppress(psutil.NoSuchProcess, KeyError):
                used += int(psutil.Process(registered[name].pid).memory_info().rss)
        self.memory_bytes_max = max(self.memory_bytes_max, used)

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def log_end(self) -> str:
        """Return the end of the demo's output and of the driver's log."""
        driver = self.folders.log(PIPELINES)
        driver_log = driver.read_text(errors="replace") if driver.exists() else ""
        return f"{self.output()[-SHOWN_CHARACTERS:]}\n{driver_log[-SHOWN_CHARACTERS:]}"

    def close(self) -> None:
        self.kill(ALL)
        deadline = time.monotonic() + PROGRESS_S_MAX
        while self.register.left() and time.monotonic() < deadline:
            time.sleep(POLL_S)


def demo_under_kills(kills: int, seed: int, print_progress: Callable[[str], None]) -> str:
    """Run the demo under kills and return a summary. Raise AssertionError if its results are not right."""
    random = Random(seed)
    done: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="demo-kills-") as folder:
        demo = Demo(Path(folder))
        try:
            endless = ("--rate", str(RATE))
            to_the_end = ("--events", "1")  # existing events count: the run ends with all of them
            last = round(kills * LAST_KILLS_SHARE)
            for count, arguments in ((kills - last, endless), (last, to_the_end)):
                demo.start(*arguments)
                _run_under_kills(demo, count, arguments, random, done, print_progress)
                if arguments == endless:
                    demo.kill(ALL)
            _finish(demo, to_the_end)
            _check_no_process_left(demo)
            tracebacks = [line for line in demo.output().splitlines() if "Traceback" in line]
            assert not tracebacks, f"seed {seed}: {len(tracebacks)} tracebacks: {demo.log_end()}"
            (summary,) = [line for line in demo.output().splitlines() if " events: " in line and "clicks and" in line][
                -1:
            ]
        finally:
            demo.close()
    kinds = ", ".join(f"{times} of {kind}" for kind, times in sorted(done.items()))
    memory = f"node and generator at most {demo.memory_bytes_max / MEGABYTE:.0f} MB"
    return f"{done.total()} kills ({kinds}), {demo.starts} starts, {summary}, all results once; {memory} (seed {seed})"


def _run_under_kills(
    demo: Demo,
    count: int,
    arguments: tuple[str, ...],
    random: Random,
    done: Counter[str],
    print_progress: Callable[[str], None],
) -> None:
    """Kill this many times, or fewer if the demo ends before."""
    wanted = done.total() + count
    while done.total() < wanted:
        _wait_for_progress(demo, random)
        if demo.code == 0:
            return
        _restart_if_killed(demo, arguments)
        kind = random.choices(list(KINDS), list(KINDS.values()))[0]
        if not demo.kill(kind):
            continue
        done[kind] += 1
        print_progress(f"kill {done.total()}: {kind}, after {demo.batches()} batches")
        _restart_if_killed(demo, arguments)


def _wait_for_progress(demo: Demo, random: Random) -> None:
    if random.random() < BLIND_PROBABILITY:
        end = time.monotonic() + random.uniform(0, BLIND_S_MAX)
    else:
        before, deadline = demo.batches(), time.monotonic() + PROGRESS_S_MAX
        while demo.batches() <= before and demo.code is None:
            assert time.monotonic() < deadline, (
                f"no batch was completed within {PROGRESS_S_MAX:.0f} s: {demo.log_end()}"
            )
            demo.measure()
            time.sleep(POLL_S)
        end = time.monotonic() + random.uniform(0, AFTER_BATCH_S_MAX)
    while time.monotonic() < end and demo.code is None:
        time.sleep(POLL_S)


def _restart_if_killed(demo: Demo, arguments: tuple[str, ...]) -> None:
    if demo.code is not None and demo.code != 0:
        assert demo.code == -signal.SIGKILL, f"the demo exited with {demo.code}: {demo.log_end()}"
        demo.start(*arguments)


def _finish(demo: Demo, arguments: tuple[str, ...]) -> None:
    deadline = time.monotonic() + END_S_MAX
    while demo.code != 0:
        assert time.monotonic() < deadline, f"the demo did not end within {END_S_MAX:.0f} s: {demo.log_end()}"
        _restart_if_killed(demo, arguments)
        demo.measure()
        time.sleep(POLL_S)
    assert RIGHT in demo.output(), demo.log_end()


def _check_no_process_left(demo: Demo) -> None:
    """Check that no process outlives the demo, such as a Spark without its driver."""
    deadline = time.monotonic() + LEFT_OVER_S_MAX
    while left := demo.left_over():
        assert time.monotonic() < deadline, f"processes are still running: {left}"
        time.sleep(POLL_S)
