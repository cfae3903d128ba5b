"""Topics that are filled once and read many times by all contestants, with the same bytes on every server."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.contestants import Broker
from bench.frames import make_batch, produce_frame
from bench.line import IN_FLIGHT, KIB
from bench.load import Span, run_load
from bench.produce import produce_load
from bench.wire import BenchFailed, end_offset
from headrace.records.compression import Codec

PARTITIONS = 4
FILL_S_MAX = 300.0


@dataclass(frozen=True)
class DataSet:
    value_bytes: int
    batch_records: int
    codec: Codec

    @property
    def name(self) -> str:
        size = f"{self.value_bytes}b" if self.value_bytes < KIB else f"{self.value_bytes // KIB}k"
        return size if self.codec == Codec.NONE else f"{size}-{self.codec.name.lower()}"

    @property
    def title(self) -> str:
        size = f"{self.value_bytes} B" if self.value_bytes < KIB else f"{self.value_bytes // KIB} KB"
        return size if self.codec == Codec.NONE else f"{size}, {self.codec.name.lower()}"

    def whole(self, records: int) -> int:
        """Return `records` rounded down to whole batches in all partitions, at least one batch each."""
        at_once = self.batch_records * PARTITIONS
        return max(1, records // at_once) * at_once


SMALL = DataSet(100, 500, Codec.NONE)
SMALL_ZSTD = DataSet(100, 500, Codec.ZSTD)
LARGE = DataSet(KIB, 50, Codec.NONE)
LARGE_ZSTD = DataSet(KIB, 50, Codec.ZSTD)


class Shelf:
    """Holds one filled topic at a time; requesting another one replaces it."""

    def __init__(self) -> None:
        self._held: tuple[Broker, int, str] | None = (
            None  # with the pid of the server, which may have been restarted since
        )

    def topic(self, server: Broker, data: DataSet, records: int) -> str:
        name = f"filled-{data.name}-{records}"
        wanted = (server, server.pid, name)
        if self._held == wanted:
            return name
        self.clear()
        fill(server, name, data, records)
        self._held = wanted
        return name

    def clear(self) -> None:
        if self._held is not None:
            server, process, name = self._held
            if server.is_running and server.pid == process:
                server.drop_topic(name)
        self._held = None


def fill(server: Broker, topic: str, data: DataSet, records: int) -> None:
    """Fill the topic partition by partition, so that all partitions get the same number of records."""
    if records != data.whole(records):
        raise BenchFailed(f"{records} records of {data.title} are not whole batches")
    batch = make_batch(data.batch_records, data.value_bytes, codec=data.codec)
    server.open_topic(topic, PARTITIONS)
    for partition in range(PARTITIONS):
        load = produce_load(topic, [batch], 1, IN_FLIGHT)
        load = replace(load, frames=[[produce_frame(topic, partition, batch)]])
        bytes_max = records // PARTITIONS // batch.records * batch.plain_size
        run_load(load, server.port, server.pid, Span(FILL_S_MAX, 0.0, bytes_max))
    found = end_of(server, topic)
    if found != records:
        raise BenchFailed(f"{topic} was filled with {found} records instead of {records}")


def end_of(server: Broker, topic: str) -> int:
    """Return the sum of the end offsets of all partitions."""
    return sum(end_offset(server.wire, topic, partition) for partition in range(PARTITIONS))
