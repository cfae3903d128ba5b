"""Base class of simulated clients: a name, a cluster, a history to write, and records with self-verifying values."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct, field

from headrace.base.clock import Clock
from headrace.base.errors import RETRIABLE, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection, Disconnected
from headrace.records.batch import Buffer, iterate_batches
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec
from headrace.records.record import decode_records
from testkit.history import History
from testkit.simulator.loop import SimulatedLoop

T = TypeVar("T")

REQUEST_TIMEOUT_S = 1.5
BACKOFF_S = 0.15
# Errors after which it is unknown whether the request was carried out.
LOST = (Disconnected, TimeoutError)


class Read(NamedTuple):
    offset: int
    value: str
    timestamp: int


class World(Struct):
    """State shared by all clients of one run."""

    loop: SimulatedLoop
    clock: Clock
    history: History
    bootstrap: tuple[tuple[str, int], ...]
    timestamps: dict[str, int] = field(default_factory=dict)  # timestamps in ms of all values that were sent
    stopping: bool = False
    keyed: bool = False  # every record has a unique key

    @property
    def is_cluster(self) -> bool:
        return len(self.bootstrap) > 1


def encode_value(name: str, size: int) -> bytes:
    """Return the name and `size` bytes derived from it, so that a reader detects every flipped or missing byte."""
    head = f"{name}:{size}:".encode()
    return head + (head * (size // len(head) + 1))[:size]


def decode_value(value: bytes | None) -> str:
    """Return the name, or a text that no producer sends if `encode_value` did not make this value."""
    parts = (value or b"").split(b":", 2)
    if len(parts) == 3 and parts[1].isdigit():
        name = parts[0].decode(errors="replace")
        if encode_value(name, int(parts[1])) == value:
            return name
    return f"garbage {(value or b'')[:40]!r}"


def read_batches(data: Buffer) -> list[Read]:
    """Decode all records but a partial batch at the end; raise CorruptBatch if a checksum or the structure is wrong."""
    view = memoryview(data)
    return [
        Read(record.offset, decode_value(record.value), record.timestamp)
        for position, header in iterate_batches(view)
        for record in decode_records(view[position : position + header.size])
    ]


class Client:
    def __init__(self, name: str, world: World, random: Random) -> None:
        self.name = name
        self.world = world
        self.random = random
        self.history = world.history
        self.cluster = Cluster(list(world.bootstrap), client_id=name, timeout_s=REQUEST_TIMEOUT_S, random=Random(name))

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(self.random.random() * seconds)

    async def close(self) -> None:
        await self.cluster.close()

    async def leader(self, partition: TopicPartition) -> Connection:
        """Return a connection to the leader; raise Disconnected, TimeoutError or a retriable KafkaError without one."""
        return await self.cluster.leader(partition)

    async def until_it_works(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry an idempotent `attempt` until it succeeds; raise a KafkaError that is not retriable."""
        while True:
            try:
                return await attempt()
            except LOST:
                pass
            except KafkaError as error:
                if error.code not in RETRIABLE:
                    raise
                await self.refresh()
            await self.pause(BACKOFF_S)

    async def refresh(self) -> None:
        """Refresh the metadata that this client depends on, after an error; clients without a topic have none."""

    async def find_topic(self, topic: str) -> None:
        async def attempt() -> None:
            await self.cluster.partitions(topic)

        await self.until_it_works(attempt)

    def batch(self, names: Sequence[str], size_max: int, codec: Codec, **producer: Any) -> bytearray:
        builder = BatchBuilder()
        for name in names:
            now_ms = self.world.clock.now_ms()
            self.world.timestamps[name] = now_ms
            key = name.encode() if self.world.keyed else None
            builder.append(now_ms, key, encode_value(name, self.random.randint(0, size_max)))
        return builder.build(codec=codec, **producer)


def raise_for(code: int, what: str) -> None:
    if code != ErrorCode.NONE:
        raise KafkaError(ErrorCode(code), what)
