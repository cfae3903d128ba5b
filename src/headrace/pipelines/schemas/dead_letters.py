"""Sends records that could not be decoded to a dead-letter topic, unchanged, with the error and their origin in headers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from headrace.base.errors import HeadraceError
from headrace.client.producer.producer import AsyncProducer
from headrace.options.table import Value
from headrace.pipelines.background import background
from headrace.pipelines.failures import SourceError

ERROR, TOPIC, PARTITION, OFFSET, TIMESTAMP = (
    f"headrace.deadletter.{name}" for name in ("error", "topic", "partition", "offset", "timestamp")
)
CLIENT_ID = "spark-headrace-deadletter"
RECORD_BYTES_MAX = 100 * 1024 * 1024  # more than brokers accept, so that they report the error
UNDER_WAY_MAX = 1000
CLOSE_S_MAX = 10.0

Headers = tuple[tuple[str, bytes | None], ...]


class BadRow(Struct, frozen=True):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    why: str


class DeadLetters:
    """The dead letters of one task. The producer is opened when the first is sent."""

    def __init__(self, client: dict[str, Value], target: str, topic: str, partition: int) -> None:
        self._client = client
        self._target = target
        self._topic = topic
        self._partition = partition
        self._producer: AsyncProducer | None = None

    def send(self, rows: Sequence[BadRow]) -> None:
        """Send the rows and wait until the brokers have them; only then may Spark receive the rows around them."""
        try:
            background().do(self._send(rows))
        except HeadraceError as error:
            where = f"{self._topic}-{self._partition}, offset {rows[0].offset}"
            raise SourceError(f"{where}: bad records cannot be put into {self._target}: {error}") from None

    def close(self) -> None:
        if self._producer is not None:
            background().do(self._producer.close(CLOSE_S_MAX))

    async def _send(self, rows: Sequence[BadRow]) -> None:
        if self._producer is None:
            given = {
                "bootstrap.servers": self._client["bootstrap.servers"],
                "client.id": CLIENT_ID,
                "max.request.size": RECORD_BYTES_MAX,
                "buffer.memory": 2 * RECORD_BYTES_MAX,
            }
            producer = AsyncProducer(given, cluster=await background().cluster(self._client))
            await producer.start()
            self._producer = producer
        for first in range(0, len(rows), UNDER_WAY_MAX):
            under_way: list[asyncio.Future[Any]] = []
            for row in rows[first : first + UNDER_WAY_MAX]:
                headers = (*row.headers, *self._origin(row))
                under_way.append(await self._producer.send(self._target, row.value, row.key, headers=headers))
            await self._producer.flush()
            await _all(under_way)

    def _origin(self, row: BadRow) -> Iterable[tuple[str, bytes]]:
        yield ERROR, row.why.encode()
        yield TOPIC, self._topic.encode()
        yield PARTITION, str(self._partition).encode()
        yield OFFSET, str(row.offset).encode()
        yield TIMESTAMP, str(row.timestamp_ms).encode()


async def _all(under_way: Sequence[asyncio.Future[Any]]) -> None:
    for error in await asyncio.gather(*under_way, return_exceptions=True):
        if isinstance(error, BaseException):
            raise error
