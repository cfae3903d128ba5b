"""A client that waits for its broker and sends the first record that is acknowledged: how long a start takes, seen from outside."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.contestants import Process
from bench.frames import ACKS, PRODUCE_VERSION, make_batch
from bench.wire import READY_S_MAX, BenchFailed, Wire, has_leaders
from headrace.base.errors import ErrorCode, HeadraceError
from headrace.protocol.messages.produce import ProduceRequest
from headrace.testing.processes import ProcessFailed

PROBE_S = 0.005


@dataclass(frozen=True)
class FirstRecords:
    seconds: float  # from the start of the process until the last of the partitions had acknowledged one
    offsets: list[int]  # which they were given, partition by partition


def start_to_first_record(
    process: Process, topic: str, partitions: Sequence[int] = (0,), *, create: bool = False
) -> FirstRecords:
    """Starts the process, and leaves it running if all goes well."""
    probe = _FirstRecord(process.port, topic, partitions, create=create)
    began = time.monotonic()
    probe.start()
    try:
        process.start()
        probe.join(READY_S_MAX)
    except ProcessFailed as error:
        raise BenchFailed(str(error)) from error
    finally:
        probe.give_up = True
        if probe.acknowledged_at is None:
            process.kill()  # which also ends a wait for an answer
        probe.join()
    if probe.acknowledged_at is None:
        raise BenchFailed(f"nothing was acknowledged within {READY_S_MAX:.0f} s of the start")
    return FirstRecords(probe.acknowledged_at - began, probe.offsets)


class _FirstRecord(threading.Thread):
    """What a producer does that waits for its broker: connect, ask for the topic (which may create it), send."""

    def __init__(self, port: int, topic: str, partitions: Sequence[int], *, create: bool) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._topic = topic
        self._partitions = partitions
        self._create = create
        self.give_up = False
        self.acknowledged_at: float | None = None
        self.offsets: list[int] = []

    def run(self) -> None:
        while not self.give_up:
            with contextlib.suppress(OSError, HeadraceError), Wire(self._port) as wire:
                self._wait_for_leaders(wire)
                self.offsets = [self._produce(wire, partition) for partition in self._partitions]
                self.acknowledged_at = None if self.give_up else time.monotonic()
                return
            time.sleep(PROBE_S)

    def _wait_for_leaders(self, wire: Wire) -> None:
        while not self.give_up and not has_leaders(wire, self._topic, create=self._create):
            time.sleep(PROBE_S)

    def _produce(self, wire: Wire, partition: int) -> int:
        """The offset that the record was given."""
        batch = memoryview(make_batch(1, 100).data)
        data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
        topic = ProduceRequest.TopicProduceData(name=self._topic, partition_data=[data])
        while not self.give_up:
            answer = wire.ask(ProduceRequest(acks=ACKS, timeout_ms=30_000, topic_data=[topic]), PRODUCE_VERSION)
            written = answer.responses[0].partition_responses[0]
            if written.error_code == ErrorCode.NONE:
                return int(written.base_offset)
            time.sleep(PROBE_S)
        return -1
