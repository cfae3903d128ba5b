"""Topics that are filled once and read many times by all clients, with the same bytes on every server."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.errors import BenchFailed
from bench.load.frames import KIB, make_batch, produce_frame
from bench.load.generator import Span, run_load, target_of
from bench.load.produce import IN_FLIGHT, produce_load
from bench.systems.requests import end_offset
from bench.systems.servers import Broker
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

    def whole_batches(self, records: int) -> int:
        """Return `records` rounded down to whole batches in all partitions, at least one batch each."""
        step = self.batch_records * PARTITIONS
        return max(1, records // step) * step


SMALL = DataSet(100, 500, Codec.NONE)
SMALL_ZSTD = DataSet(100, 500, Codec.ZSTD)
LARGE = DataSet(KIB, 50, Codec.NONE)
LARGE_ZSTD = DataSet(KIB, 50, Codec.ZSTD)


class TopicCache:
    """Keeps one filled topic at a time; requesting another one replaces it."""

    def __init__(self) -> None:
        # Server, its pid (it may have been restarted since) and the topic's name.
        self._cached: tuple[Broker, int, str] | None = None

    def filled_topic(self, server: Broker, data: DataSet, records: int) -> str:
        """Return the name of a topic with this data on the server, filling it if necessary."""
        name = f"filled-{data.name}-{records}"
        requested = (server, server.pid, name)
        if self._cached == requested:
            return name
        self.clear()
        fill(server, name, data, records)
        self._cached = requested
        return name

    def clear(self) -> None:
        """Delete the topic, unless its server was closed or restarted."""
        if self._cached is not None:
            server, pid, name = self._cached
            if server.is_running and server.pid == pid:
                server.delete_topic(name)
        self._cached = None


def fill(server: Broker, topic: str, data: DataSet, records: int) -> None:
    """Fill the topic partition by partition, so that all partitions get the same number of records."""
    if records != data.whole_batches(records):
        raise BenchFailed(f"{records} records of {data.title} are not whole batches")
    batch = make_batch(data.batch_records, data.value_bytes, codec=data.codec)
    server.create_topic(topic, PARTITIONS)
    for partition in range(PARTITIONS):
        load = produce_load(topic, [batch], 1, IN_FLIGHT)
        load = replace(load, frames=[[produce_frame(topic, partition, batch)]])
        bytes_max = records // PARTITIONS // batch.records * batch.plain_size
        run_load(load, target_of(server), Span(FILL_S_MAX, 0.0, bytes_max))
    filled = total_end_offset(server, topic)
    if filled != records:
        raise BenchFailed(f"{topic} was filled with {filled} records instead of {records}")


def total_end_offset(server: Broker, topic: str) -> int:
    """Return the sum of the end offsets of all partitions."""
    return sum(end_offset(server.connection, topic, partition) for partition in range(PARTITIONS))
