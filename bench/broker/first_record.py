"""Start-up time seen by a client that waits for its broker and sends the first acknowledged record."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.errors import BenchFailed
from bench.load.frames import ACKS, PRODUCE_VERSION, make_batch
from bench.systems.requests import READY_S_MAX, Connection, has_leaders
from bench.systems.servers import Process
from headrace.base.errors import ErrorCode, HeadraceError
from headrace.protocol.messages.produce import ProduceRequest
from headrace.testing.processes import ProcessFailed

PROBE_S = 0.005


@dataclass(frozen=True)
class FirstRecords:
    seconds: float  # seconds from process start until every partition has acknowledged a record
    offsets: list[int]  # offsets of these records, by partition


def start_to_first_record(
    process: Process, topic: str, partitions: Sequence[int] = (0,), *, create: bool = False
) -> FirstRecords:
    """Start the process and wait for a record in each partition; the process keeps running on success."""
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
            process.kill()  # also ends a wait for a response
        probe.join()
    if probe.acknowledged_at is None:
        raise BenchFailed(f"no record was acknowledged within {READY_S_MAX:.0f} s of the start")
    return FirstRecords(probe.acknowledged_at - began, probe.offsets)


class _FirstRecord(threading.Thread):
    """A producer that waits for its broker: it connects, requests metadata (which may create the topic) and sends."""

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
            with contextlib.suppress(OSError, HeadraceError), Connection(self._port) as connection:
                self._wait_for_leaders(connection)
                self.offsets = [self._produce(connection, partition) for partition in self._partitions]
                self.acknowledged_at = None if self.give_up else time.monotonic()
                return
            time.sleep(PROBE_S)

    def _wait_for_leaders(self, connection: Connection) -> None:
        while not self.give_up and not has_leaders(connection, self._topic, create=self._create):
            time.sleep(PROBE_S)

    def _produce(self, connection: Connection, partition: int) -> int:
        """Write one record and return its offset."""
        batch = memoryview(make_batch(1, 100).data)
        data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
        topic = ProduceRequest.TopicProduceData(name=self._topic, partition_data=[data])
        while not self.give_up:
            response = connection.request(
                ProduceRequest(acks=ACKS, timeout_ms=30_000, topic_data=[topic]), PRODUCE_VERSION
            )
            written = response.responses[0].partition_responses[0]
            if written.error_code == ErrorCode.NONE:
                return int(written.base_offset)
            time.sleep(PROBE_S)
        return -1
