"""The lines of the broker chapter with their goals, in execution order."""

from __future__ import annotations

from bench.broker.compaction import Compaction
from bench.broker.connections import ActiveConnections, IdleConnections
from bench.broker.fetch import Fetch
from bench.broker.loop_lag import LoopLag
from bench.broker.opening import OpenLarge
from bench.broker.partitions import ManyPartitions
from bench.broker.produce import Memory, Produce
from bench.broker.start import Start
from bench.groups.coordinator_restart import CoordinatorRestart
from bench.groups.lines import CLASSIC_GROUP, CONSUMER_GROUP, GroupCommits, GroupHeartbeats
from bench.line import Figure, Line
from bench.load.frames import KIB, records_that_fit
from bench.systems.servers import KAFKA
from headrace.records.compression import Codec

NO_WORSE = 1.0
TLS_GOAL = 1.2
CPU_US_PER_REQUEST = Figure("cpu_us_per_request", "CPU µs/request", False, digits=1)
ONE_AND_FOUR_CONNECTIONS = (("", "1 connection, 5 in flight", 1), ("-4x4", "4 connections × 4 partitions", 4))


def broker_lines() -> list[Line]:
    records_64k = records_that_fit(64 * KIB, KIB)
    records_1m = records_that_fit(1024 * KIB, KIB)
    records_16k = records_that_fit(16 * KIB, KIB)
    throughput = (_mb_per_s(), _cpu_s_per_gb())
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
            (_mb_per_s(2.0, 0.7), _cpu_s_per_gb(0.4)),
            records_64k, KIB, 1, 1,
        ),
        four,
        Produce(
            "produce-1m",
            "produce 1 MB batches, 2 connections, 5 in flight",
            (_mb_per_s(1.5, 0.7), _cpu_s_per_gb()),
            records_1m, KIB, 2, 2,
        ),
        Produce("produce-500x100", "produce 500 × 100 B batches, 4 connections", throughput, 500, 100, 4, 4),
        Produce(
            "idempotent-16k", "idempotent producer, 16 KB batches, 1 connection, 5 in flight", throughput,
            records_16k, KIB, 1, 1, idempotent=True,
        ),
        Fetch("fetch-1", "fetch 1 KB records, 1 connection, 1 MB per fetch", (_mb_per_s(1.2), _cpu_s_per_gb()), 1),
        Fetch("fetch-4", "fetch 1 KB records, 4 connections, 1 MB per fetch", (_mb_per_s(1.2), _cpu_s_per_gb()), 4),
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
        CoordinatorRestart(),
        LoopLag(),
    ]  # fmt: skip


def _compressed(records: int) -> list[Line]:
    figures = (_mb_per_s(NO_WORSE), _cpu_s_per_gb(NO_WORSE))
    return [
        Produce(
            f"{codec.name.lower()}-64k{suffix}", f"produce 64 KB of records in {codec.name.lower()} batches, {how}",
            figures, records, KIB, connections, connections, codec=codec, against=(KAFKA,),
        )
        for codec in (Codec.LZ4, Codec.ZSTD)
        for suffix, how, connections in ONE_AND_FOUR_CONNECTIONS
    ]  # fmt: skip


def _encrypted(records: int) -> list[Line]:
    figures = (_mb_per_s(TLS_GOAL), _cpu_s_per_gb(NO_WORSE))
    produce: list[Line] = [
        Produce(
            f"tls-produce-64k{suffix}", f"TLS, produce 64 KB batches, {how}",
            figures, records, KIB, connections, connections, tls=True, against=(KAFKA,),
        )
        for suffix, how, connections in ONE_AND_FOUR_CONNECTIONS
    ]  # fmt: skip
    return [
        *produce,
        Fetch("tls-fetch-1", "TLS, fetch 1 KB records, 1 connection, 1 MB per fetch", figures, 1, tls=True),
        Fetch("tls-fetch-4", "TLS, fetch 1 KB records, 4 connections, 1 MB per fetch", figures, 4, tls=True),
    ]


def _mb_per_s(goal: float | None = None, ceiling_goal: float | None = None) -> Figure:
    return Figure("mb_per_s", "MB/s", True, goal, ceiling_goal)


def _cpu_s_per_gb(goal: float | None = None) -> Figure:
    return Figure("cpu_s_per_gb", "CPU s/GB", False, goal, digits=2)
