"""The main job under kill -9 at random moments: its node, generator, driver, Spark, itself, or all at once.

It is restarted whenever nothing else restarts it. In the end its own summary must be right.
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
from headrace.testing.processes import free_port

MAIN, SPARK, ALL = "main", "spark", "all"
KINDS = {NODE: 3, GENERATOR: 3, PIPELINES: 3, SPARK: 2, MAIN: 2, ALL: 3}
RATE = 2_000  # events per second while the number of events is unlimited
LEFT_OVER_S_MAX = 30.0
LAST_KILLS_SHARE = 0.3  # share of kills that hit a run that is about to end
BLIND_PROBABILITY = 0.3  # probability that a kill does not wait for progress of Spark
BLIND_S_MAX, AFTER_BATCH_S_MAX = 12.0, 3.0
MOVES_S_MAX = 300.0
END_S_MAX = 1_200.0
TURN_S = 0.1
RIGHT = "events in = events out"
SHOWN_CHARACTERS = 4_000
MEGABYTE = 1_000_000


class Job:
    """`make run`, across restarts. Its processes are in its folder's register, or are descendants of those."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._log = folder / "make-run.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.folders = Folders(folder / "work", folder / ".headrace")
        self.register = Register(self.folders.shop / "processes.json")
        self._sessions: set[int] = set()  # ids of system sessions, one for each registered process of every start
        self.starts = 0
        self.memory_bytes_max = 0

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "headrace", "demo", "--plain", "--port", str(self._port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--folder", str(self.folders.work), *arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1

    @property
    def code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def kill(self, kind: str) -> bool:
        """Kill processes of this kind. Return False if there are none now."""
        self._note_sessions()
        if kind == MAIN:
            return self._kill_main()
        if kind == ALL:
            there = list(self.register.left().values())
            done = self._kill_main()
            for one in there:
                with suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
            return done
        found = self.register.left().get(PIPELINES if kind == SPARK else kind)
        if found is None:
            return False
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(found.pid)
            if kind == SPARK:
                machines = [one for one in process.children(recursive=True) if one.name() == "java"]
                if not machines:
                    return False
                process = machines[0]
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

    def _note_sessions(self) -> None:
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
        self._note_sessions()
        there = self.register.left()
        used = 0
        for name in (NODE, GENERATOR):
            with suppress(psutil.NoSuchProcess, KeyError):
                used += int(psutil.Process(there[name].pid).memory_info().rss)
        self.memory_bytes_max = max(self.memory_bytes_max, used)

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def last_words(self) -> str:
        driver = self.folders.log(PIPELINES)
        driver_log = driver.read_text(errors="replace") if driver.exists() else ""
        return f"{self.said()[-SHOWN_CHARACTERS:]}\n{driver_log[-SHOWN_CHARACTERS:]}"

    def close(self) -> None:
        self.kill(ALL)
        deadline = time.monotonic() + MOVES_S_MAX
        while self.register.left() and time.monotonic() < deadline:
            time.sleep(TURN_S)


def demo_under_kills(kills: int, seed: int, say: Callable[[str], None]) -> str:
    """Run the job under kills and return a summary. Raise AssertionError if its results are not right."""
    random = Random(seed)
    done: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="demo-kills-") as folder:
        job = Job(Path(folder))
        try:
            endless = ("--rate", str(RATE))
            to_the_end = ("--events", "1")  # existing events count: the run ends with all of them
            last = round(kills * LAST_KILLS_SHARE)
            for count, arguments in ((kills - last, endless), (last, to_the_end)):
                job.start(*arguments)
                _play(job, count, arguments, random, done, say)
                if arguments == endless:
                    job.kill(ALL)
            _finish(job, to_the_end)
            _expect_nothing_left(job)
            left = [line for line in job.said().splitlines() if "Traceback" in line]
            assert not left, f"seed {seed}: {left}: {job.last_words()}"
            (summary,) = [line for line in job.said().splitlines() if " events: " in line and "clicks and" in line][-1:]
        finally:
            job.close()
    driver_log = ", ".join(f"{times} of {kind}" for kind, times in sorted(done.items()))
    memory = f"node and generator at most {job.memory_bytes_max / MEGABYTE:.0f} MB"
    return (
        f"{done.total()} kills ({driver_log}), {job.starts} starts, {summary}, all results once; {memory} (seed {seed})"
    )


def _play(
    job: Job,
    count: int,
    arguments: tuple[str, ...],
    random: Random,
    done: Counter[str],
    say: Callable[[str], None],
) -> None:
    """Kill this many times, or fewer if the job ends before."""
    wanted = done.total() + count
    while done.total() < wanted:
        _let_it_work(job, random)
        if job.code == 0:
            return
        _start_again(job, arguments)
        kind = random.choices(list(KINDS), list(KINDS.values()))[0]
        if not job.kill(kind):
            continue
        done[kind] += 1
        say(f"{done.total()}: {kind} is killed; {job.batches()} batches so far")
        _start_again(job, arguments)


def _let_it_work(job: Job, random: Random) -> None:
    if random.random() < BLIND_PROBABILITY:
        end = time.monotonic() + random.uniform(0, BLIND_S_MAX)
    else:
        before, deadline = job.batches(), time.monotonic() + MOVES_S_MAX
        while job.batches() <= before and job.code is None:
            assert time.monotonic() < deadline, f"nothing moves any more: {job.last_words()}"
            job.measure()
            time.sleep(TURN_S)
        end = time.monotonic() + random.uniform(0, AFTER_BATCH_S_MAX)
    while time.monotonic() < end and job.code is None:
        time.sleep(TURN_S)


def _start_again(job: Job, arguments: tuple[str, ...]) -> None:
    if job.code is not None and job.code != 0:
        assert job.code == -signal.SIGKILL, f"it ended with code {job.code}: {job.last_words()}"
        job.start(*arguments)


def _finish(job: Job, arguments: tuple[str, ...]) -> None:
    deadline = time.monotonic() + END_S_MAX
    while job.code != 0:
        assert time.monotonic() < deadline, f"it does not come to its end: {job.last_words()}"
        _start_again(job, arguments)
        job.measure()
        time.sleep(TURN_S)
    assert RIGHT in job.said(), job.last_words()


def _expect_nothing_left(job: Job) -> None:
    """Check that no process outlives the job, such as a Spark without its driver."""
    deadline = time.monotonic() + LEFT_OVER_S_MAX
    while left := job.left_over():
        assert time.monotonic() < deadline, f"processes are left: {left}"
        time.sleep(TURN_S)
