"""From the start of the process to the first acknowledged record, on a data directory that is formatted and empty."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from bench.contestants import KAFKA, Broker, Contestant
from bench.frames import ACKS, PRODUCE_VERSION, make_batch
from bench.line import Figure, Measured, Options
from bench.wire import READY_S_MAX, BenchFailed, Wire, has_leaders
from headrace.base.errors import ErrorCode, HeadraceError
from headrace.protocol.messages.produce import ProduceRequest

PROBE_S = 0.005


@dataclass(frozen=True)
class Start:
    name: str = "start"
    title: str = "process start to first acknowledged record"
    figures: tuple[Figure, ...] = (Figure("start_s", "s", False, goal=1 / 4, digits=2),)
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = True
    warm_round: bool = False

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
    """By a first start and a clean stop: it brings files and programs into the page cache besides, for both alike."""
    process = contestant.spawn(directory.absolute())
    try:
        process.start()
    finally:
        process.close()


def _start(contestant: Broker, directory: Path, topic: str) -> float:
    process = contestant.spawn(directory.absolute())
    probe = _FirstRecord(process.port, topic)
    began = time.monotonic()
    probe.start()
    try:
        process.start()
        probe.join(READY_S_MAX)
    finally:
        probe.give_up = True
        process.kill()  # which also ends a wait for an answer
        process.close()
        probe.join()
    if probe.acknowledged_at is None:
        raise BenchFailed(f"{contestant.name} acknowledged nothing within {READY_S_MAX:.0f} s")
    return probe.acknowledged_at - began


class _FirstRecord(threading.Thread):
    """What a producer does that waits for its broker: connect, ask for the topic (which creates it), send."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._topic = topic
        self.give_up = False
        self.acknowledged_at: float | None = None

    def run(self) -> None:
        while not self.give_up:
            with contextlib.suppress(OSError, HeadraceError), Wire(self._port) as wire:
                self._produce(wire)
                return
            time.sleep(PROBE_S)

    def _produce(self, wire: Wire) -> None:
        while not self.give_up and not has_leaders(wire, self._topic, create=True):
            time.sleep(PROBE_S)
        batch = memoryview(make_batch(1, 100).data)
        data = ProduceRequest.PartitionProduceData(index=0, records=batch)
        topic = ProduceRequest.TopicProduceData(name=self._topic, partition_data=[data])
        while not self.give_up:
            answer = wire.ask(ProduceRequest(acks=ACKS, timeout_ms=30_000, topic_data=[topic]), PRODUCE_VERSION)
            if answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE:
                self.acknowledged_at = time.monotonic()
                return
            time.sleep(PROBE_S)
