"""A sink on real brokers without Spark, whose tasks and drivers crash, stall or lose responses at a chosen request."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import contextmanager

import pyarrow as pa

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.client.consumer.fetching import READ_COMMITTED
from headrace.client.consumer.list_offsets import EARLIEST, LATEST, list_offset
from headrace.client.consumer.range_reader import read_range
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection, Disconnected
from headrace.pipelines.background import Background
from headrace.pipelines.sink import commits as sink
from headrace.pipelines.sink.commands import Driver
from headrace.pipelines.sink.executor import CommitExecutor
from headrace.pipelines.sink.options import parse_sink_options
from headrace.pipelines.sink.task_writer import Task, driver_id, write_task
from headrace.protocol.messages.update_features import UpdateFeaturesRequest

PARTITIONS = 2
SAFE_DOWNGRADE = 2


class Crash(BaseException):
    """The crash of a process; nothing in it continues."""


class Spark:
    """One run of a query."""

    def __init__(self, bootstrap, topic, name, run, **options):
        self.options = parse_sink_options({"kafka.bootstrap.servers": bootstrap, "topic": topic, **options})
        self.name, self.run = name, run
        self._attempts = 0

    def task(self, batch, partition, rows, attempt=0):
        """Write rows, given as (key, value); every task writes to all partitions."""
        self._attempts += 1
        keys, values = zip(*rows, strict=True) if rows else ((), ())
        table = pa.record_batch({"key": pa.array(keys, pa.utf8()), "value": pa.array(values, pa.utf8())})
        task = Task(self.name, self.run, batch, partition, attempt, self._attempts)
        return write_task([table.slice(0, 1), table.slice(1)], self.options, task)

    def batch(self, number, tasks=2, rows=2):
        """Write a batch and return it uncommitted."""
        written = [
            self.task(number, partition, [(f"k{n}", f"{number}.{partition}.{n}") for n in range(rows)]).transaction
            for partition in range(tasks)
        ]
        return self.of(number, written)

    def of(self, number, written):
        done = tuple(one for one in written if one is not None)
        driver = Driver(done[0].producer_id, done[0].producer_epoch) if self.options.single and done else None
        return sink.Batch(number, self.run, done, driver, f"{driver_id(self.options.prefix, self.name)}.")

    def commit(self, batch):
        """Commit as a new process would: without state from before, on connections that are closed afterwards."""
        return self._execute(sink.commit(batch, self.options.choices, now_ms=0))

    def abort(self, batch, may_be_decided=True):
        return self._execute(sink.abort(batch, may_be_decided=may_be_decided))

    def _execute(self, conversation):
        async def work():
            cluster = await process.cluster(self.options.client)
            return await CommitExecutor(cluster, self.options, self.name).carry_out(conversation)

        process = Background()
        try:
            return process.do(work())
        finally:
            process.close()


def expected(batches, tasks=2, rows=2):
    return Counter(f"{b}.{t}.{n}" for b in batches for t in range(tasks) for n in range(rows))


def visible(bootstrap, topic):
    """Return the committed values with their counts, and whether a transaction is open."""

    async def work():
        host, _, port = bootstrap.rpartition(":")
        found = Counter()
        is_open = False
        async with Cluster([(host, int(port))]) as cluster:
            for index in await cluster.partitions(topic):
                partition = TopicPartition(topic, index)
                start = await list_offset(cluster, partition, EARLIEST)
                end = await list_offset(cluster, partition, LATEST, isolation=READ_COMMITTED)
                is_open |= end < await list_offset(cluster, partition, LATEST)
                async for rows in read_range(
                    cluster, partition, start, end, columns=["value"], isolation=READ_COMMITTED
                ):
                    found.update(value.decode() for value in rows.column("value").to_pylist())
        return found, is_open

    return asyncio.run(work())


def set_transaction_version(bootstrap, version):
    """Set the cluster's transaction version; brokers before Kafka 4 have version 1."""

    async def work():
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

    def __init__(self, at, what):
        self.at, self.what, self.count = at, what, 0
        self.reached, self.may_continue = threading.Event(), threading.Event()
        self._loop = None

    @property
    def happened(self):
        return self.count >= self.at

    async def intercept(self, connection, original, message, **more):
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
def requests(monkeypatch, at, what):
    """Apply a fault to request number `at` of the first event loop, which stands for a process, that makes any."""
    found = RequestFaults(at, what)
    original = Connection.request

    async def request(self, message, **more):
        return await found.intercept(self, original, message, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "request", request)
        yield found
