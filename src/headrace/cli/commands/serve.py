"""`headrace serve`: runs a node in the foreground."""

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
from headrace.cli.examples import Serving
from headrace.cli.examples import examples as make_examples
from headrace.cli.options import Config, SettingFlags, Strict, single_command
from headrace.node.configuration.listener_addresses import host_and_port
from headrace.node.configuration.settings import LOG_FORMAT, OWN_OPTIONS, Settings, read_settings
from headrace.node.configuration.sources import gather
from headrace.node.node import Node, Ports
from headrace.observe.json_logs import JsonFormatter
from headrace.observe.log_format import LineFormatter, log_to_stderr
from headrace.records.kernel import COMPILED
from headrace.server.eager_selector import EagerSelector
from headrace.storage.disk import DiskFiles

log = logging.getLogger("headrace")

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
# Longest time another thread may hold the interpreter while the event loop waits; Python's default of 5 ms is too long here.
SWITCH_INTERVAL_S = 0.0005
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
MALLOC_MMAP_THRESHOLD_BYTES = 4 * 1024 * 1024  # buffers of at least this size are mapped, and unmapped when freed
MALLOC_TRIM_THRESHOLD_BYTES = 16 * 1024 * 1024  # maximum free memory kept at the top of the heap

app = single_command()


@app.command()
def serve(
    config: Config = None,
    flags: SettingFlags = None,
    strict: Strict = False,
    log_level: Annotated[str, typer.Option(help="Log level: DEBUG, INFO, WARNING or ERROR.")] = "INFO",
    log_format: Annotated[
        str | None,
        typer.Option(metavar="text|json", help="Format of log lines; short for -c headrace.log.format=FORMAT."),
    ] = None,
    examples: Annotated[bool, typer.Option("--examples", help="Print commands to try once the node is ready.")] = False,
) -> None:
    """Run a node until SIGTERM or Ctrl-C."""
    if log_level.upper() not in LOG_LEVELS:
        raise ConfigError(f"--log-level {log_level!r}: expected {', '.join(LOG_LEVELS)}")
    given = [*(flags or []), *([] if log_format is None else [f"{LOG_FORMAT}={log_format}"])]
    # Read before the settings: reading those already logs warnings.
    chosen = gather(config, os.environ, given, OWN_OPTIONS).texts.get(LOG_FORMAT)
    log_to_stderr(log_level.upper(), JsonFormatter() if chosen == "json" else LineFormatter())
    settings = read_settings(config, given, os.environ, strict=strict)
    if not COMPILED:
        log.warning(
            "the compiled kernel is missing: records are checked by the pure-Python fallback, which is ten times slower;"
            " install a C compiler and reinstall Headrace"
        )
    _raise_open_files_limit()
    _limit_retained_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(EagerSelector())) as runner:
        runner.run(_serve(settings, show_examples=examples))


def _raise_open_files_limit() -> None:
    """Raise the soft limit on open files to the hard limit.

    Each open segment needs a descriptor, so the soft limit of a shell (1024) would be the first resource to run out.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(settings: Settings, *, show_examples: bool) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    _tune_garbage_collection()
    node = await Node.start(settings, Ports(DiskFiles(), SystemClock(), random.SystemRandom(), loop))
    gc.freeze()  # the collector skips objects that live as long as the node
    _announce(node)
    if show_examples and node.broker is not None:
        print(make_examples(_serving(node)), flush=True)
    failed = asyncio.ensure_future(node.failed())
    waiting = asyncio.ensure_future(stopped.wait())
    await asyncio.wait({failed, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        await node.kill()
        failed.result()
    failed.cancel()
    log.info("stopping: giving up leadership and closing logs")
    await node.stop()
    log.info("stopped cleanly")


def _limit_retained_memory() -> None:
    """Make glibc return freed memory to the system.

    By default, freeing large buffers raises its thresholds, so that it keeps up to 64 MB of freed memory in each arena.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library, which does not keep freed memory in this way
    mallopt(M_MMAP_THRESHOLD, MALLOC_MMAP_THRESHOLD_BYTES)
    mallopt(M_TRIM_THRESHOLD, MALLOC_TRIM_THRESHOLD_BYTES)


def _tune_garbage_collection() -> None:
    """Run a full collection before clients connect, and make further ones rare.

    With ten thousand partitions a full collection takes 100 ms.
    """
    gc.collect()
    gc.set_threshold(50_000, 50, 100)


def _announce(node: Node) -> None:
    """Print the one line on standard output that scripts wait for: clients can connect from now on."""
    http = f", http://{_http_address(node)}/metrics" if node.http_port else ""
    print(
        f"headrace node {node.settings.node_id} of cluster {node.cluster_id} serves on {', '.join(_addresses(node))}{http}",
        flush=True,
    )


def _addresses(node: Node) -> list[str]:
    """Return where clients connect to, or other nodes if this is only a controller."""
    listeners = node.settings.broker_listeners or node.settings.controller_listeners
    return [host_and_port(address.host or "*", node.ports[address.name]) for address in listeners]


def _http_address(node: Node) -> str:
    return f"localhost:{node.http_port}"


def _serving(node: Node) -> Serving:
    here = os.path.relpath(sys.argv[0])
    first = node.settings.endpoints(node.ports)[0]
    return Serving(
        here if not here.startswith("..") else "headrace",
        host_and_port(first.host, first.port),
        _http_address(node) if node.http_port else None,
        ", ".join(node.settings.log_dirs),
    )
