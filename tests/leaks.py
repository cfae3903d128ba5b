"""Fails a test that leaves a thread, a process, a socket, a pipe or an open file behind.

What one test leaves, the garbage collector frees in the middle of another. Fixtures with a wider scope than a test may keep what they
start: it is recorded when they are set up, together with what their event loops start later.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.client.sync.background import background as client_background
from headrace.pipelines.background import background as spark_background
from headrace.storage.disk import DiskFiles
from headrace.testing.cluster import EmbeddedNode
from headrace.testing.processes import NodeProcess

SETTLE_S_MAX = 15.0  # time for the peer of a closed connection to close it too, or for a stopping thread to end
SETTLE_PAUSE_S = 0.005
COLLECT_S = 0.2  # time after which garbage is collected, so that it is not collected during another test
NAMES_MAX = 8
SPARK_FIXTURES = {"headrace_spark", "spark"}
_LIBRARIES = sysconfig.get_path("purelib")  # libraries keep files open, such as fonts
_NODE_DATA = os.path.join(tempfile.gettempdir(), "headrace-")  # prefix of temporary node directories


class Resources(NamedTuple):
    """The threads, open descriptors and child processes of this process at one moment."""

    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]  # (number, target): the target is a path, or the number of a socket or pipe
    children: frozenset[int]

    def without(self, others: Resources) -> Resources:
        found: list[Any] = [mine - theirs for mine, theirs in zip(self, others, strict=True)]
        return Resources(*found)

    def with_more(self, others: Resources) -> Resources:
        found: list[Any] = [mine | theirs for mine, theirs in zip(self, others, strict=True)]
        return Resources(*found)

    def names(self) -> list[str]:
        """Return one line for each of the first few resources."""
        ports = {f"socket:[{inode}]": f" from port {own} to {other}" for inode, (own, other) in _tcp_sockets()}
        found = [
            *(f"thread {thread.name}" for thread in self.threads),
            *(f"process {child}: {_command(child)}" for child in sorted(self.children)),
            *(f"descriptor {number}: {target}{ports.get(target, '')}" for number, target in sorted(self.descriptors)),
        ]
        return found[:NAMES_MAX] + ([f"and {len(found) - NAMES_MAX} more"] if len(found) > NAMES_MAX else [])


NOTHING = Resources(frozenset(), frozenset(), frozenset())


def resources() -> Resources:
    return Resources(frozenset(threading.enumerate()), frozenset(_descriptors()), frozenset(_children()))


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # closed in the meantime, or the descriptor of this listing
        yield int(name), target


def _children() -> Iterator[int]:
    for task in os.listdir("/proc/self/task"):
        try:
            text = Path(f"/proc/self/task/{task}/children").read_text()
        except OSError:
            continue
        yield from map(int, text.split())


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "gone"


def _track(kind: Any, made: Callable[[Any], None]) -> None:
    """Call `made` with every object of the class that is created from now on."""
    make = kind.__init__

    def tracked(made_one: Any, *args: Any, **named: Any) -> None:
        make(made_one, *args, **named)
        made(made_one)

    kind.__init__ = tracked


class OpenDisks:
    """The `DiskFiles` of the current test, closed after it: most storage tests abandon their logs as a crash would."""

    def __init__(self) -> None:
        self.made: list[DiskFiles] = []
        _track(DiskFiles, self._made)

    def _made(self, files: DiskFiles) -> None:
        if threading.current_thread() is threading.main_thread():  # nodes run in other threads and close theirs
            self.made.append(files)

    def close(self) -> None:
        while self.made:
            self.made.pop().close()


def sockets_of_spark() -> set[str]:
    """Return the targets of the sockets between this process and Spark's JVM.

    py4j keeps one for each thread that uses the JVM, and one on which it reports collected objects: it may open that one seconds
    after the last test with Spark.
    """
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    gateway = getattr(context, "_gateway", None)
    if gateway is None:
        return set()
    callbacks = gateway.get_callback_server()
    ports = {gateway.gateway_parameters.port} | ({callbacks.get_listening_port()} if callbacks is not None else set())
    return {f"socket:[{inode}]" for inode, ends in _tcp_sockets() if not ports.isdisjoint(ends)}


def _tcp_sockets() -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the inode and the two ports of each TCP socket of this machine."""
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):  # there may be no IPv6
            for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                own, other = (int(address.rpartition(":")[2], 16) for address in fields[1:3])
                yield int(fields[9]), (own, other)


def _is_of_spark(thread: threading.Thread) -> bool:
    owner = getattr(getattr(thread, "_target", None), "__self__", thread)
    return type(owner).__module__.startswith("py4j")


def _runs_in(node: EmbeddedNode | NodeProcess, left: Resources) -> bool:
    if isinstance(node, EmbeddedNode):
        return node.thread in left.threads
    return node.is_running and node.pid in left.children


class LeakCheck:
    """Compares the resources of the process before and after each test."""

    def __init__(self) -> None:
        self._shared = NOTHING  # resources of fixtures with a wider scope
        self._before: Resources | None = None
        self._uses_spark = False  # if so, connections to the JVM stay open for later calls
        self._disks = OpenDisks()
        self._made_nodes: list[EmbeddedNode | NodeProcess] = []
        self._shared_nodes: list[EmbeddedNode | NodeProcess] = []
        _track(EmbeddedNode, self._made_nodes.append)
        _track(NodeProcess, self._made_nodes.append)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        before, disks = resources(), list(self._disks.made)
        self._made_nodes.clear()
        try:
            return (yield)
        finally:
            self._disks.made = disks
            self._shared_nodes += self._made_nodes
            self._shared = self._shared.with_more(resources().without(before))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        if self._shared == NOTHING:
            client_background()  # starts the permanent threads of synchronous clients and Spark tasks
            spark_background()
            self._shared = resources()
        self._uses_spark = bool(SPARK_FIXTURES & set(getattr(item, "fixturenames", ())))
        self._before = resources()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        result = yield
        self._disks.close()
        before, self._before = self._before, None
        if before is not None:
            left = self._settle(before)
            if left != NOTHING:
                self._shared = self._shared.with_more(left)  # counts against this test only, not against later ones
                pytest.fail("this test leaves behind:\n  " + "\n  ".join(left.names()), pytrace=False)
        return result

    def _settle(self, before: Resources) -> Resources:
        began, is_collected = time.monotonic(), False
        while True:
            left, waited_s = self._left(before), time.monotonic() - began
            if left == NOTHING or waited_s > SETTLE_S_MAX:
                return left
            if waited_s > COLLECT_S and not is_collected:
                is_collected = True
                gc.collect()
            time.sleep(SETTLE_PAUSE_S)

    def _left(self, before: Resources) -> Resources:
        left = resources().without(before).without(self._shared)
        if left == NOTHING:
            return left
        if any(_runs_in(node, left) for node in self._shared_nodes):
            self._shared = self._shared.with_more(left)  # the test restarted a shared node
            return NOTHING
        pool = self._shared_pool_threads()
        sockets = "socket:" if self._uses_spark else "none"
        spark = sockets_of_spark()
        return Resources(
            frozenset(one for one in left.threads if one not in pool and not _is_of_spark(one)),
            frozenset(
                one
                for one in left.descriptors
                if one[1] not in spark and not one[1].startswith((_NODE_DATA, _LIBRARIES, sockets))
            ),
            left.children,
        )

    def _shared_pool_threads(self) -> set[threading.Thread]:
        """Return the pool threads of event loops that stay: they start only when there is work for them."""
        found: set[threading.Thread] = set()
        for thread in self._shared.threads:
            owner = getattr(getattr(thread, "_target", None), "__self__", None)
            loop = getattr(owner, "loop", owner)
            if isinstance(loop, asyncio.AbstractEventLoop):
                found |= getattr(getattr(loop, "_default_executor", None), "_threads", set())
        return found


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeakCheck(), "leak-check")
