"""Real `headrace serve` processes that a test can kill, pause and restart. Only processes started here get signals."""

from __future__ import annotations

import os
import random
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
START_S_MAX = 60.0
STOP_S_MAX = 60.0
LINE_BYTES_MAX = 4096
LOG_SHOWN_CHARACTERS = 6000
# Below the ephemeral range: a client that keeps reconnecting to a dead node could otherwise be assigned the node's port,
# connect to itself, and keep the node from restarting.
FREE_PORTS = range(10_240, 32_000)
FREE_PORT_TRIES = 100
PORT_SHARES = 16  # parts of FREE_PORTS, one for each worker of pytest-xdist, which choose ports at the same time
_chosen_ports: set[int] = set()  # in this process; a node binds its port only some time after it was chosen

_SERVES = re.compile(rb"^headrace node \d+ of cluster (\S+) serves on \S+:(\d+)")


class ProcessFailed(Exception):
    """The process did not start or stop as expected; the text ends with its log."""


def free_port() -> int:
    """Return a free loopback port below the ephemeral range, each time another one; raise OSError if none is found."""
    for _ in range(FREE_PORT_TRIES):
        port = random.SystemRandom().choice(_share(os.environ.get("PYTEST_XDIST_WORKER", "")))
        if port in _chosen_ports:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            _chosen_ports.add(port)
            return port
    raise OSError(f"no free port found in {FREE_PORT_TRIES} tries")


def _share(worker: str) -> range:
    """Return the ports that a worker of pytest-xdist may choose from, all of them outside of one."""
    number = worker.removeprefix("gw")
    if not number.isdecimal():
        return FREE_PORTS
    size = len(FREE_PORTS) // PORT_SHARES
    return FREE_PORTS[int(number) % PORT_SHARES * size :][:size]


class Host(NamedTuple):
    """Where a node runs: its address, and the words before its command, such as `ip netns exec NAME`."""

    address: str = LOOPBACK
    prefix: tuple[str, ...] = ()


class NodeProcess:
    """One node process that keeps its port and data directory across restarts."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        directory: Path | str | None = None,
        environment: Mapping[str, str] | None = None,
        host: Host = Host(),  # noqa: B008 -- immutable
    ) -> None:
        """Prepare a node with its data and log in `directory`, by default a temporary one."""
        self.host = host
        self.settings = dict(settings or {})  # by Kafka's names; changes apply at the next start
        self._environment = dict(environment or {})
        self._temporary = tempfile.TemporaryDirectory(prefix="headrace-") if directory is None else None
        self._directory = Path(self._temporary.name if self._temporary is not None else str(directory))
        self._process: subprocess.Popen[bytes] | None = None
        self.data_dir = self._directory / "data"
        self.log_file = self._directory / "node.log"  # standard error of all starts
        self.port = free_port()
        self.advertised_port = self.port  # port for clients; that of a proxy if one is in front of the node
        self.announcement = ""  # first line of the output of the last start

    def __enter__(self) -> NodeProcess:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """Return the address for bootstrap.servers, as host:port."""
        return f"{self.host.address}:{self.advertised_port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return the process. The node must have been started, and not been killed or terminated since."""
        assert self._process is not None, "start comes first"
        return self._process

    @property
    def pid(self) -> int:
        """Return the process id. The node must have been started."""
        return self.process.pid

    @property
    def running_pid(self) -> int | None:
        """Return the process id while the process exists, otherwise None; other threads may read it."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def is_running(self) -> bool:
        """Return whether the process exists; a paused one does."""
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        """Return the command line that `start` runs; `settings` take precedence over the defaults for tests."""
        address = f"PLAINTEXT://{self.host.address}:{self.port}"
        settings = {
            **({} if "listeners" in self.settings else {"listeners": address, "advertised.listeners": address}),
            "log.dirs": str(self.data_dir),
            "headrace.http.listener": "",
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [*self.host.prefix, sys.executable, "-m", "headrace", "serve", *options]

    def start(self, timeout_s: float = START_S_MAX) -> NodeProcess:
        """Start the node and return when it announces its address; raise ProcessFailed if it exits or times out."""
        self.launch()
        return self.wait_until_serving(timeout_s)

    def launch(self) -> None:
        """Start the process without waiting: the nodes of a cluster need each other to serve."""
        assert not self.is_running, "it is running already"
        self._directory.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._environment},
            )

    def wait_until_serving(self, timeout_s: float = START_S_MAX) -> NodeProcess:
        """Return when the launched node announces its address; raise ProcessFailed if it exits or times out."""
        try:
            line = self._first_line(timeout_s)
            if not _SERVES.match(line):
                raise ProcessFailed(f"the node printed {line!r} instead of its address; its log:\n{self._log_end()}")
        except BaseException:
            self.kill()
            raise
        self.announcement = line.decode().strip()
        return self

    def _first_line(self, timeout_s: float) -> bytes:
        stream = self.process.stdout
        assert stream is not None
        line = b""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise ProcessFailed(f"the node did not serve within {timeout_s} s; its log:\n{self._log_end()}")
                more = os.read(stream.fileno(), LINE_BYTES_MAX)
                if not more:
                    code = self.process.wait(STOP_S_MAX)
                    raise ProcessFailed(f"the node ended with code {code}; its log:\n{self._log_end()}")
                line += more
        return line

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has exited."""
        if self._process is not None:
            self._process.kill()  # safe after an exit: the pid is not reused before `wait`
            self._process.wait(STOP_S_MAX)
            self._forget()

    def terminate(self, timeout_s: float = STOP_S_MAX) -> int:
        """Send SIGTERM and return the exit code, 0 after a clean stop.

        If the process does not exit in time, kill it and raise ProcessFailed.
        """
        process = self.process
        process.terminate()
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailed(f"no end within {timeout_s} s of SIGTERM; its log:\n{self._log_end()}") from None
        self._forget()
        return code

    def restart(self) -> NodeProcess:
        """Terminate the process if it runs and start it again, on the same port and with its data.

        Raise ProcessFailed if it does not stop or start in time.
        """
        if self.is_running:
            self.terminate()
        return self.start()

    def pause(self) -> None:
        """Send SIGSTOP: the process stays alive but does nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT, which ends a `pause`."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the process, and remove its data and log if they are in a temporary directory."""
        self.kill()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _forget(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    # --- observation

    def log_text(self) -> str:
        """Return the log of all starts, or an empty text before the first one."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def _log_end(self) -> str:
        return self.log_text()[-LOG_SHOWN_CHARACTERS:]

    def rss_bytes(self) -> int:
        """Return the resident memory (needs psutil)."""
        import psutil

        return int(psutil.Process(self.pid).memory_info().rss)

    def cpu_seconds(self) -> float:
        """Return the user and system time since the start (needs psutil)."""
        import psutil

        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)
