"""Restart of a coordinator with a million committed offsets in one partition of its topic."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
from dataclasses import dataclass

from bench.errors import BenchFailed
from bench.groups.frames import OFFSET_COMMIT_VERSION, commit_request, fetch_offset, wait_for_coordinator
from bench.line import Figure, Measurement, Options
from bench.systems.loop_lag import LAG_QUANTILE, lag_buckets, quantile
from bench.systems.processes import rss_bytes
from bench.systems.requests import READY_S_MAX, Connection, create_topic, wait_until_served
from bench.systems.servers import HEADRACE, KAFKA, Broker, Process, System, stop_cleanly
from headrace.base.errors import HeadraceError
from headrace.coordinators.partitioning import coordinator_partition

TOPIC = "committed"
PARTITIONS = 500  # offsets committed per request
GROUP_PARTITIONS = 50  # default number of partitions of __consumer_offsets
SHARD = 7
PROBE_S = 0.005


@dataclass(frozen=True)
class CoordinatorRestart:
    name: str = "load-1m-offsets"
    title: str = "restart with a million committed offsets in one shard"
    figures: tuple[Figure, ...] = (
        Figure("restart_s", "until OffsetFetch returns them, s", False, goal=1.0, digits=1),
        Figure("lag_p999_ms", "event loop lag p99.9, ms, upper bound", False, goal_absolute=50.0, digits=1),
        Figure("rss_mb", "resident memory, MB", False, digits=0),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = True
    warm_rounds: int = 0
    rounds_max: int = 1  # filling takes most of a minute

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, Broker)
        directory = options.work / f"{system.name}-{topic}"
        process = system.spawn(directory.absolute())
        try:
            process.start()
            groups = _group_names(max(1, options.committed_offsets // PARTITIONS))
            fill_s = _fill(process, groups)
            stop_cleanly(process)
            restart_s = _restart(process, groups)
            figures = {"restart_s": restart_s, "rss_mb": rss_bytes(process.pid) / 1e6}
            if system.name == HEADRACE:
                figures["lag_p999_ms"] = quantile(lag_buckets(process), LAG_QUANTILE) * 1000
            return Measurement(figures, {"offsets": len(groups) * PARTITIONS, "fill_s": fill_s})
        finally:
            process.kill()
            process.close()
            shutil.rmtree(directory, ignore_errors=True)


def _group_names(count: int) -> list[str]:
    """Return names of groups that all belong to one shard."""
    names = (f"group-{number}" for number in itertools.count())
    return list(
        itertools.islice((name for name in names if coordinator_partition(name, GROUP_PARTITIONS) == SHARD), count)
    )


def _fill(process: Process, groups: list[str]) -> float:
    """Commit all offsets and return the seconds it took."""
    with Connection(process.port) as connection:
        create_topic(connection, TOPIC, PARTITIONS)
        wait_until_served(connection, TOPIC, PARTITIONS)
        wait_for_coordinator(connection, groups[:1], TOPIC)
        began = time.monotonic()
        for number, group in enumerate(groups):
            request = commit_request(group, TOPIC, range(PARTITIONS), number)
            (committed,) = connection.request(request, OFFSET_COMMIT_VERSION).topics
            codes = [partition.error_code for partition in committed.partitions if partition.error_code]
            if codes:
                raise BenchFailed(f"an OffsetCommit of {group} failed with error {codes[0]}")
        return time.monotonic() - began


def _restart(process: Process, groups: list[str]) -> float:
    """Return the seconds from process start until the last committed offset can be fetched."""
    probe = _LastOffset(process.port, groups[-1], len(groups) - 1)
    began = time.monotonic()
    probe.start()
    try:
        process.start()
        probe.join(READY_S_MAX)
    finally:
        probe.give_up = True
        if probe.fetched_at is None:
            process.kill()  # also ends a wait for a response
        probe.join()
    if probe.fetched_at is None:
        raise BenchFailed(
            f"OffsetFetch did not return the last offset within {READY_S_MAX:.0f} s of the start: {probe.last_result}"
        )
    return probe.fetched_at - began


class _LastOffset(threading.Thread):
    """A consumer that polls the coordinator until it returns the last committed offset."""

    def __init__(self, port: int, group: str, offset: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._group = group
        self._offset = offset
        self.give_up = False
        self.fetched_at: float | None = None
        self.last_result: object = "no response"

    def run(self) -> None:
        while not self.give_up:
            with contextlib.suppress(OSError, HeadraceError), Connection(self._port) as connection:
                while not self.give_up:
                    self.last_result = fetch_offset(connection, self._group, TOPIC, PARTITIONS - 1)
                    if self.last_result == (0, self._offset):
                        self.fetched_at = time.monotonic()
                        return
                    time.sleep(PROBE_S)
            time.sleep(PROBE_S)
