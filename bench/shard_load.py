"""Restart of a coordinator with a million committed offsets in one partition of its topic."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
from dataclasses import dataclass

from bench.contestants import HEADRACE, KAFKA, Broker, Contestant, Process, stop_cleanly
from bench.group_frames import OFFSET_COMMIT_VERSION, commit_request, fetch_offset, wait_for_coordinator
from bench.line import Figure, Measured, Options
from bench.loop_lag import SHARE, lag_buckets, quantile
from bench.processes import rss_bytes
from bench.wire import READY_S_MAX, BenchFailed, Wire, create_topic, wait_until_served
from headrace.base.errors import HeadraceError
from headrace.coordinators.partitioning import coordinator_partition

TOPIC = "committed"
PARTITIONS = 500  # offsets committed per request
GROUP_PARTITIONS = 50  # default number of partitions of __consumer_offsets
SHARD = 7
PROBE_S = 0.005


@dataclass(frozen=True)
class ShardLoad:
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

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        assert isinstance(contestant, Broker)
        directory = options.work / f"{contestant.name}-{topic}"
        process = contestant.spawn(directory.absolute())
        try:
            process.start()
            groups = _group_names(max(1, options.committed_offsets // PARTITIONS))
            fill_s = _fill(process, groups)
            stop_cleanly(process)
            restart_s = _restart(process, groups)
            figures = {"restart_s": restart_s, "rss_mb": rss_bytes(process.pid) / 1e6}
            if contestant.name == HEADRACE:
                figures["lag_p999_ms"] = quantile(lag_buckets(process), SHARE) * 1000
            return Measured(figures, {"offsets": len(groups) * PARTITIONS, "fill_s": fill_s})
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
    with Wire(process.port) as wire:
        create_topic(wire, TOPIC, PARTITIONS)
        wait_until_served(wire, TOPIC, PARTITIONS)
        wait_for_coordinator(wire, groups[:1], TOPIC)
        began = time.monotonic()
        for number, group in enumerate(groups):
            request = commit_request(group, TOPIC, range(PARTITIONS), number)
            (answered,) = wire.ask(request, OFFSET_COMMIT_VERSION).topics
            codes = [one.error_code for one in answered.partitions if one.error_code]
            if codes:
                raise BenchFailed(f"a commit of {group} was answered with error {codes[0]}")
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
        if probe.answered_at is None:
            process.kill()  # also ends a wait for a response
        probe.join()
    if probe.answered_at is None:
        raise BenchFailed(f"no offset was answered for within {READY_S_MAX:.0f} s of the start: {probe.heard}")
    return probe.answered_at - began


class _LastOffset(threading.Thread):
    """A consumer that waits for its coordinator."""

    def __init__(self, port: int, group: str, offset: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._group = group
        self._offset = offset
        self.give_up = False
        self.answered_at: float | None = None
        self.heard: object = "nobody answers"

    def run(self) -> None:
        while not self.give_up:
            with contextlib.suppress(OSError, HeadraceError), Wire(self._port) as wire:
                while not self.give_up:
                    self.heard = fetch_offset(wire, self._group, TOPIC, PARTITIONS - 1)
                    if self.heard == (0, self._offset):
                        self.answered_at = time.monotonic()
                        return
                    time.sleep(PROBE_S)
            time.sleep(PROBE_S)
