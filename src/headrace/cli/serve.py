"""`headrace serve`: a node in the foreground."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import random
import resource
import signal
import sys
from typing import Annotated

import typer

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigError
from headrace.cli.options import Config, SettingFlags, Strict, verb
from headrace.node.listener_addresses import host_and_port
from headrace.node.node import Node, Ports
from headrace.node.settings import Settings, read_settings
from headrace.observe.log_format import LineFormatter, log_to_stderr
from headrace.records.kernel import COMPILED
from headrace.server.eager_selector import EagerSelector
from headrace.storage.disk import DiskFiles

log = logging.getLogger("headrace")

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
SWITCH_INTERVAL_S = (
    0.0005  # how long a thread may keep the loop waiting for the interpreter; Python's own 5 ms are a long time here
)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
MALLOC_MMAP_THRESHOLD_BYTES = 4 * 1024 * 1024  # from this size on, a buffer is mapped by itself and unmapped when freed
MALLOC_TRIM_THRESHOLD_BYTES = 16 * 1024 * 1024  # the most free memory kept at the top of the heap

app = verb()


@app.command()
def serve(
    config: Config = None,
    flags: SettingFlags = None,
    strict: Strict = False,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR")] = "INFO",
) -> None:
    """Run a node until SIGTERM or Ctrl-C."""
    if log_level.upper() not in LOG_LEVELS:
        raise ConfigError(f"--log-level {log_level!r}: expected {', '.join(LOG_LEVELS)}")
    log_to_stderr(log_level.upper(), LineFormatter())
    settings = read_settings(config, flags or [], os.environ, strict=strict)
    if not COMPILED:
        log.warning(
            "the compiled kernel is missing: records are checked by its Python twin, ten times slower; install a C compiler"
        )
    _raise_open_files_limit()
    _limit_retained_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(EagerSelector())) as runner:
        runner.run(_serve(settings))


def _raise_open_files_limit() -> None:
    """One descriptor an open segment: the soft limit of a shell (1024) would be the first thing to run out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    _calm_the_collector()
    node = await Node.start(settings, Ports(DiskFiles(), SystemClock(), random.SystemRandom(), loop))
    gc.freeze()  # what lives as long as the node is looked at no more
    _announce(node)
    failed = asyncio.ensure_future(node.failed())
    waiting = asyncio.ensure_future(stopped.wait())
    await asyncio.wait({failed, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        await node.kill()
        failed.result()
    failed.cancel()
    log.info("stopping: leadership is given up, logs are closed")
    await node.stop()
    log.info("stopped cleanly")


def _limit_retained_memory() -> None:
    """Make glibc return freed memory to the system.

    By default it learns from large buffers that large buffers are common, and keeps up to 64 MB of what was freed in each arena.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library, without such a habit
    mallopt(M_MMAP_THRESHOLD, MALLOC_MMAP_THRESHOLD_BYTES)
    mallopt(M_TRIM_THRESHOLD, MALLOC_TRIM_THRESHOLD_BYTES)


def _calm_the_collector() -> None:
    """Full collections are rare: with ten thousand partitions one takes 100 ms. The last for long comes before clients do."""
    gc.collect()
    gc.set_threshold(50_000, 50, 100)


def _announce(node: Node) -> None:
    """One line on standard output when clients can come: scripts wait for it."""
    doors = ", ".join(
        host_and_port(address.host or "*", node.ports[address.name]) for address in node.settings.broker_listeners
    )
    http = f", http://localhost:{node.http_port}/metrics" if node.http_port else ""
    print(f"headrace node {node.settings.node_id} of cluster {node.cluster_id} serves on {doors}{http}", flush=True)
