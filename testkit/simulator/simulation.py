"""Runs one seed: a machine, clients and faults, then a time without faults, a final read, and the checks."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Protocol

from msgspec import Struct, field

from headrace.base.errors import HeadraceError
from testkit.history import Anomaly, Event, FinalRead, History, Kind, check
from testkit.simulator.admin import create_topic
from testkit.simulator.checkers import FinalReader, Unreadable, check_responses
from testkit.simulator.clients import Client, World
from testkit.simulator.faults import Faults
from testkit.simulator.limits import small_limits
from testkit.simulator.loop import Deadlock, SimulatedLoop, TooManySteps
from testkit.simulator.machine import DATA, HOST, PORT, SECOND_DATA, Machine, SimulatedClock
from testkit.simulator.mover import Mover
from testkit.simulator.network import Network
from testkit.simulator.workload import TOPIC, make_workload

COMPACTED_SHARE = 0.3
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", "file.delete.delay.ms": "500"}
DONE_S_MAX = 120.0  # simulated seconds after the last fault


class Trace:
    """Hashes every event of a run: two runs with the same hash did the same."""

    def __init__(self, show: Callable[[str], None] | None) -> None:
        self._hash = hashlib.sha256()
        self._show = show
        self.now: Callable[[], float] = lambda: 0.0

    def __call__(self, text: str) -> None:
        line = f"{self.now():.6f} {text}"
        self._hash.update(line.encode())
        if self._show is not None:
            self._show(line)

    def digest(self) -> str:
        return self._hash.hexdigest()[:16]


class Outcome(Struct):
    seed: int
    trace_hash: str = ""
    anomalies: list[Anomaly] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # broken invariants, unhandled exceptions, no progress
    faults: list[str] = field(default_factory=list)
    steps: int = 0
    simulated_s: float = 0.0
    acknowledged: int = 0
    read: int = 0

    @property
    def is_good(self) -> bool:
        return not self.anomalies and not self.failures


class _LogWatch(logging.Handler):
    """Adds the node's log to the trace; a logged exception other than HeadraceError and OSError is a failure."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.WARNING)
        self._trace = trace
        self.unexpected: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._trace(f"log {record.levelname} {text}")
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, HeadraceError | OSError):
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.unexpected.append(f"logged: {text}: {error!r} at {where.filename.rsplit('/', 1)[-1]}:{where.lineno}")


@contextmanager
def _watched_log(trace: Trace) -> Iterator[_LogWatch]:
    logger = logging.getLogger("headrace")
    before = (logger.level, logger.propagate, logger.handlers[:])
    watch = _LogWatch(trace)
    logger.handlers[:] = [watch]
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield watch
    finally:
        logger.level, logger.propagate, logger.handlers[:] = before


class ScheduledFaults(Protocol):
    done: list[str]  # the kinds of faults so far, in order


class SeedRun(Protocol):
    """One run of a seed, as `run_seed` sees it."""

    flag: str  # command-line flag that selects this kind of seed
    loop: SimulatedLoop

    def __init__(self, seed: int, trace: Trace) -> None: ...

    @property
    def faults(self) -> ScheduledFaults: ...

    @property
    def failures(self) -> list[str]:
        """Return the failures of nodes that no fault excuses."""
        ...

    async def run(self) -> None: ...

    def verdict(self) -> list[Anomaly]: ...

    def count(self, outcome: Outcome) -> None: ...


class Simulation:
    """A simulation of producers and readers; other kinds of seeds override its public methods and attributes."""

    faults_type: type[Faults] = Faults
    flag = ""  # command-line flag that selects this kind of seed

    def __init__(self, seed: int, trace: Trace) -> None:
        self._seed = seed
        self._trace = trace
        random = self._random("run")
        self.loop = SimulatedLoop(self._random("loop"))  # type: ignore[abstract]
        self.loop.look_s = random.choice((0.0, 0.0, 1e-6, 5e-4))
        self.loop.slow_share = random.choice((0.02, 0.02, 0.3))
        self.loop.at_once_share = random.choice((0.0, 0.1, 0.1, 0.95))
        trace.now = lambda: self.loop.now
        self.history = History(lambda: self.loop.now, self._tell)
        self.network = Network(self.loop, self._random("network"), trace)
        options = {
            "replica.high.watermark.checkpoint.interval.ms": str(random.choice((200, 5000))),
            "log.flush.offset.checkpoint.interval.ms": str(random.choice((300, 1000, 60_000))),
        }
        # In compacted seeds every record has a unique key, so compaction must keep all records.
        compaction = self._random("compaction")
        self._is_compacted = compaction.random() < COMPACTED_SHARE
        options["log.cleaner.backoff.ms"] = str(compaction.choice((20, 300, 15_000)))
        metadata = self._random("metadata")
        options["metadata.log.max.record.bytes.between.snapshots"] = str(metadata.choice((1, 400, 2_000, 20_971_520)))
        options["metadata.max.retention.bytes"] = str(metadata.choice((500, 5_000, 104_857_600)))
        options |= self.more_options()
        self.machine = Machine(
            self.loop,
            self.network,
            self._random("machine"),
            self.history,
            options,
            trace,
            two_dirs=self._random("directories").random() < 0.4,
        )
        self.world = World(self.loop, SimulatedClock(self.loop), self.history, ((HOST, PORT),))
        self.world.keyed = self._is_compacted
        self._faults = self.faults_type(self.loop, self.network, self.machine, self._random("faults"))
        self.final_read = FinalRead({})
        self._checking: asyncio.Task[None] | None = None

    @property
    def faults(self) -> Faults:
        return self._faults

    @property
    def failures(self) -> list[str]:
        return self.machine.failures

    def more_options(self) -> dict[str, str]:
        return {}

    def _random(self, what: str) -> Random:
        return Random(f"{self._seed} {what}")

    def _tell(self, event: Event) -> None:
        self._trace(f"{event.kind} {event.process} {event.operation} {event.call} {sorted(event.value.items())}")

    async def run(self) -> None:
        supervisor = self.loop.create_task(self.machine.supervise())
        await self.machine.until_up()
        await self.run_clients()
        assert self._checking is not None
        await stop_all([self.machine], [supervisor], self._checking)

    def check_always(self) -> None:
        """Start checking the invariants periodically."""
        self._checking = self.loop.create_task(self.faults.check_always())

    async def run_clients(self) -> None:
        """Run all clients and faults; the node is up before and after."""
        workload = make_workload(self.world, self._random("workload"))
        first = Client("first", self.world, self._random("first"))
        topic_options = {**workload.topic_options, **(COMPACTED if self._is_compacted else {})}
        await create_topic(first, TOPIC, workload.partitions, topic_options)
        if workload.is_flushed:
            self.machine.flushed = [(TOPIC, index) for index in range(workload.partitions)]
        await first.close()
        self.check_always()
        producing = [self.loop.create_task(producer.run()) for producer in workload.producers]
        others = [self.loop.create_task(client.run()) for client in workload.others]
        if self.machine.two_dirs:
            random = self._random("mover")
            mover = Mover("mover", self.world, random, TOPIC, workload.partitions, [DATA, SECOND_DATA])
            others.append(self.loop.create_task(mover.run()))
        await self.faults.run()
        await self.faults.heal()
        await self._finish(producing, "producers")
        self.world.stopping = True
        await self._finish(others, "readers")
        await self.machine.until_up()
        reader = FinalReader("final", self.world, self._random("final"), TOPIC, workload.partitions)
        self.final_read = await reader.read_everything()

    async def _finish(self, tasks: list[asyncio.Task[None]], what: str) -> None:
        _, pending = await asyncio.wait(tasks, timeout=DONE_S_MAX)
        assert not pending, f"{len(pending)} {what} made no end within {DONE_S_MAX:.0f} s after the last fault"
        for task in tasks:
            task.result()

    def verdict(self) -> list[Anomaly]:
        return check(self.history, self.final_read) + check_responses(self.history, self.final_read, self.world)

    def count(self, outcome: Outcome) -> None:
        for event in self.history.events:
            if event.kind is Kind.OK and event.operation == "send":
                outcome.acknowledged += len(self.history.events[event.call].value["values"])
            elif event.kind is Kind.OK and event.operation == "poll":
                outcome.read += len(event.value["records"])


async def stop_all(
    machines: Sequence[Machine], supervisors: Sequence[asyncio.Task[None]], checking: asyncio.Task[None]
) -> None:
    """Stop all nodes for good, and raise what the task that checks the invariants has found."""
    for machine in machines:
        machine.hold()
        await machine.stop()
    for task in (checking, *supervisors):
        task.cancel()
    await asyncio.wait([checking, *supervisors])
    if not checking.cancelled():
        checking.result()


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep the garbage collector from walking all that a run keeps until its end, again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def run_seed(
    seed: int, show: Callable[[str], None] | None = None, simulation_type: type[SeedRun] = Simulation
) -> Outcome:
    """Run one seed; the same seed gives exactly the same run."""
    trace = Trace(show)
    outcome = Outcome(seed)
    with _without_collections(), _watched_log(trace) as watch, small_limits(Random(f"{seed} limits")) as limits:
        trace(f"small limits: {' '.join(limits)}")
        simulation = simulation_type(seed, trace)
        loop = simulation.loop
        try:
            loop.run_until_complete(simulation.run())
            outcome.anomalies = simulation.verdict()
        except (Deadlock, TooManySteps, Unreadable, AssertionError, HeadraceError) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome.failures.append(
                f"{type(error).__name__}: {error} (at {where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
            )
        outcome.failures += simulation.failures + watch.unexpected + loop.unhandled()
        outcome.steps, outcome.simulated_s, outcome.faults = loop.steps, loop.now, simulation.faults.done
        loop.close()
    simulation.count(outcome)
    outcome.trace_hash = trace.digest()
    return outcome
