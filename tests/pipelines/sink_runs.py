"""A sink on real brokers without Spark, whose tasks and drivers crash, stall or lose responses at a chosen request."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.client.consumer.fetching import READ_COMMITTED
from headrace.client.consumer.list_offsets import EARLIEST, LATEST, list_offset
from headrace.client.consumer.range_reader import RangeOptions, read_range
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection, Disconnected
from headrace.pipelines.background import Background
from headrace.pipelines.sink import commands
from headrace.pipelines.sink import commits as sink
from headrace.pipelines.sink.commands import Batch, Driver, TaskTransaction
from headrace.pipelines.sink.executor import CommitExecutor
from headrace.pipelines.sink.options import parse_sink_options
from headrace.pipelines.sink.task_writer import Task, Written, driver_id, write_task
from headrace.protocol.declare import Struct
from headrace.protocol.messages.update_features import UpdateFeaturesRequest

PARTITIONS = 2
SAFE_DOWNGRADE = 2


class Crash(BaseException):
    """The crash of a process; nothing in it continues."""


class Spark:
    """One run of a query."""

    def __init__(self, bootstrap: str, topic: str, name: str, run: str, **options: Any) -> None:
        self.options = parse_sink_options({"kafka.bootstrap.servers": bootstrap, "topic": topic, **options})
        self.name, self.run = name, run
        self._attempts = 0

    def task(self, batch: int, partition: int, rows: Sequence[tuple[str, str]], attempt: int = 0) -> Written:
        """Write rows, given as (key, value); every task writes to all partitions."""
        self._attempts += 1
        keys, values = zip(*rows, strict=True) if rows else ((), ())
        table = pa.record_batch({"key": pa.array(keys, pa.utf8()), "value": pa.array(values, pa.utf8())})
        task = Task(self.name, self.run, batch, partition, attempt, self._attempts)
        return write_task([table.slice(0, 1), table.slice(1)], self.options, task)

    def batch(self, number: int, tasks: int = 2, rows: int = 2) -> Batch:
        """Write a batch and return it uncommitted."""
        written = [
            self.task(number, partition, [(f"k{n}", f"{number}.{partition}.{n}") for n in range(rows)]).transaction
            for partition in range(tasks)
        ]
        return self.of(number, written)

    def of(self, number: int, written: Sequence[TaskTransaction | None]) -> Batch:
        done = tuple(one for one in written if one is not None)
        driver = Driver(done[0].producer_id, done[0].producer_epoch) if self.options.single and done else None
        return commands.Batch(number, self.run, done, driver, f"{driver_id(self.options.prefix, self.name)}.")

    def commit(self, batch: Batch) -> bool:
        """Commit as a new process would: without state from before, on connections that are closed afterwards."""
        return self._execute(sink.commit(batch, self.options.choices, now_ms=0))

    def abort(self, batch: Batch, may_be_decided: bool = True) -> Any:
        return self._execute(sink.abort(batch, may_be_decided=may_be_decided))

    def _execute(self, conversation: Generator[Any, Any, Any]) -> bool | None:
        async def work() -> bool | None:
            cluster = await process.cluster(self.options.client)
            return await CommitExecutor(cluster, self.options, self.name).carry_out(conversation)

        process = Background()
        try:
            return process.do(work())
        finally:
            process.close()


def expected(batches: range, tasks: int = 2, rows: int = 2) -> Counter[Any]:
    return Counter(f"{b}.{t}.{n}" for b in batches for t in range(tasks) for n in range(rows))


def visible(bootstrap: str, topic: str) -> tuple[Counter[Any], bool]:
    """Return the committed values with their counts, and whether a transaction is open."""

    async def work() -> tuple[Counter[Any], bool]:
        host, _, port = bootstrap.rpartition(":")
        found: Counter[Any] = Counter()
        is_open = False
        async with Cluster([(host, int(port))]) as cluster:
            for index in await cluster.partitions(topic):
                partition = TopicPartition(topic, index)
                start = await list_offset(cluster, partition, EARLIEST)
                end = await list_offset(cluster, partition, LATEST, isolation=READ_COMMITTED)
                is_open |= end < await list_offset(cluster, partition, LATEST)
                options = RangeOptions(columns=["value"], isolation=READ_COMMITTED)
                async for rows in read_range(cluster, partition, start, end, options):
                    found.update(value.decode() for value in rows.column("value").to_pylist())
        return found, is_open

    return asyncio.run(work())


def set_transaction_version(bootstrap: str, version: int) -> None:
    """Set the cluster's transaction version; brokers before Kafka 4 have version 1."""

    async def work() -> None:
        host, _, port = bootstrap.rpartition(":")
        update = UpdateFeaturesRequest.FeatureUpdateKey(
            feature="transaction.version", max_version_level=version, upgrade_type=SAFE_DOWNGRADE
        )
        async with Cluster([(host, int(port))]) as cluster:
            response = await cluster.request(UpdateFeaturesRequest(feature_updates=[update]))
        assert response.error_code == ErrorCode.NONE, response

    asyncio.run(work())


class RequestFaults:
    """Counts the requests made with `Connection.request` and applies fault `what` to number `at`."""

    def __init__(self, at: int, what: str) -> None:
        self.at, self.what, self.count = at, what, 0
        self.reached, self.may_continue = threading.Event(), threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def happened(self) -> bool:
        return self.count >= self.at

    async def intercept(
        self, connection: Connection, original: Callable[..., Any], message: Struct, **more: Any
    ) -> Any:
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            return await original(connection, message, **more)  # another event loop stands for another process
        if self.what == "crash" and self.happened:
            raise Crash
        self.count += 1
        if self.count != self.at:
            return await original(connection, message, **more)
        if self.what == "stall":
            self.reached.set()
            await asyncio.to_thread(self.may_continue.wait, 30)
        if self.what == "unsent":
            raise Disconnected("it was lost on its way")
        response = await original(connection, message, **more)
        if self.what == "crash":
            raise Crash
        if self.what == "unheard":
            raise Disconnected("the answer was lost on its way")
        return response


@contextmanager
def requests(monkeypatch: pytest.MonkeyPatch, at: int, what: str) -> Iterator[RequestFaults]:
    """Apply a fault to request number `at` of the first event loop, which stands for a process, that makes any."""
    found = RequestFaults(at, what)
    original = Connection.request

    async def request(self: Connection, message: Struct, **more: Any) -> Any:
        return await found.intercept(self, original, message, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "request", request)
        yield found
