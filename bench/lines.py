"""All lines with their goals, in execution order.

Each chapter runs and is published separately: a full run takes an hour.
"""

from __future__ import annotations

from bench.clients import client_lines
from bench.compaction import Compaction
from bench.connections import ActiveConnections, IdleConnections
from bench.contestants import KAFKA
from bench.fetch import Fetch
from bench.fetch_committed import FetchCommitted
from bench.frames import records_that_fit
from bench.groups import CLASSIC_GROUP, CONSUMER_GROUP, GroupCommits, GroupHeartbeats
from bench.line import KIB, Figure, Line
from bench.loop_lag import LoopLag
from bench.opening import OpenLarge
from bench.partitions import ManyPartitions
from bench.pipelines import pipeline_lines
from bench.produce import Memory, Produce
from bench.shard_load import ShardLoad
from bench.spark import spark_lines
from bench.start import Start
from bench.transactions import transactional_lines
from headrace.records.compression import Codec


def mb_per_s(goal: float | None = None, ceiling_goal: float | None = None) -> Figure:
    return Figure("mb_per_s", "MB/s", True, goal, ceiling_goal)


def cpu_s_per_gb(goal: float | None = None) -> Figure:
    return Figure("cpu_s_per_gb", "CPU s/GB", False, goal, digits=2)


CPU_US_PER_REQUEST = Figure("cpu_us_per_request", "CPU µs/request", False, digits=1)


BROKER, TRANSACTIONS, CLIENT, SPARK, PIPELINES = "broker", "transactions", "client", "spark", "pipelines"
NO_WORSE = 1.0
TLS_GOAL = 1.2


def _compressed(records: int) -> list[Line]:
    figures = (mb_per_s(NO_WORSE), cpu_s_per_gb(NO_WORSE))
    return [
        Produce(
            f"{codec.name.lower()}-64k{suffix}", f"produce 64 KB of records in {codec.name.lower()} batches, {how}",
            figures, records, KIB, connections, connections, codec=codec, against=(KAFKA,),
        )
        for codec in (Codec.LZ4, Codec.ZSTD)
        for suffix, how, connections in _ONE_AND_FOUR
    ]  # fmt: skip


def _encrypted(records: int) -> list[Line]:
    figures = (mb_per_s(TLS_GOAL), cpu_s_per_gb(NO_WORSE))
    produce: list[Line] = [
        Produce(
            f"tls-produce-64k{suffix}", f"TLS, produce 64 KB batches, {how}",
            figures, records, KIB, connections, connections, tls=True, against=(KAFKA,),
        )
        for suffix, how, connections in _ONE_AND_FOUR
    ]  # fmt: skip
    return [
        *produce,
        Fetch("tls-fetch-1", "TLS, fetch 1 KB records, 1 connection, 1 MB per fetch", figures, 1, tls=True),
        Fetch("tls-fetch-4", "TLS, fetch 1 KB records, 4 connections, 1 MB per fetch", figures, 4, tls=True),
    ]


_ONE_AND_FOUR = (("", "1 connection, 5 in flight", 1), ("-4x4", "4 connections × 4 partitions", 4))


def all_lines() -> dict[str, Line]:
    return {line.name: line for lines in chapters().values() for line in lines}


def chapters() -> dict[str, list[Line]]:
    return {
        BROKER: _broker(),
        TRANSACTIONS: [*transactional_lines(), FetchCommitted()],
        CLIENT: client_lines(),
        SPARK: spark_lines(),
        PIPELINES: pipeline_lines(),
    }


def _broker() -> list[Line]:
    records_64k = records_that_fit(64 * KIB, KIB)
    records_1m = records_that_fit(1024 * KIB, KIB)
    records_16k = records_that_fit(16 * KIB, KIB)
    throughput = (mb_per_s(), cpu_s_per_gb())
    four = Produce(
        "produce-64k-4x4", "produce 64 KB batches, 4 connections × 4 partitions", throughput, records_64k, KIB, 4, 4
    )
    message_50 = Produce(
        "message-50",
        "one message of 100 B, 50 connections",
        (Figure("requests_per_s", "requests/s", True, goal=1.2), CPU_US_PER_REQUEST),
        1, 100, 50, 10, in_flight=1,
    )  # fmt: skip
    return [
        Produce(
            "produce-64k",
            "produce 64 KB batches, 1 connection, 5 in flight",
            (mb_per_s(2.0, 0.7), cpu_s_per_gb(0.4)),
            records_64k, KIB, 1, 1,
        ),
        four,
        Produce(
            "produce-1m",
            "produce 1 MB batches, 2 connections, 5 in flight",
            (mb_per_s(1.5, 0.7), cpu_s_per_gb()),
            records_1m, KIB, 2, 2,
        ),
        Produce("produce-500x100", "produce 500 × 100 B batches, 4 connections", throughput, 500, 100, 4, 4),
        Produce(
            "idempotent-16k", "idempotent producer, 16 KB batches, 1 connection, 5 in flight", throughput,
            records_16k, KIB, 1, 1, idempotent=True,
        ),
        Fetch("fetch-1", "fetch 1 KB records, 1 connection, 1 MB per fetch", (mb_per_s(1.2), cpu_s_per_gb()), 1),
        Fetch("fetch-4", "fetch 1 KB records, 4 connections, 1 MB per fetch", (mb_per_s(1.2), cpu_s_per_gb()), 4),
        Produce(
            "message-1",
            "one message of 100 B, one connection",
            (
                Figure("p50_us", "p50 µs", False, goal=0.6),
                Figure("p99_us", "p99 µs", False, goal=0.6),
                CPU_US_PER_REQUEST,
            ),
            1, 100, 1, 1, in_flight=1,
        ),
        message_50,
        Memory(four),
        *_compressed(records_64k),
        *_encrypted(records_64k),
        ActiveConnections(message_50),
        GroupCommits(),
        GroupHeartbeats(),
        CLASSIC_GROUP,
        CONSUMER_GROUP,
        Start(),
        IdleConnections(),
        ManyPartitions(),
        OpenLarge(),
        Compaction(),
        ShardLoad(),
        LoopLag(),
    ]  # fmt: skip
