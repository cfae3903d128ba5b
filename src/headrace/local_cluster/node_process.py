"""The background process of a node of a local cluster.

Its pid and start time are in a file, so that later commands find it and never signal another process that got its pid.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from enum import Enum

import msgspec

from headrace.base.errors import HeadraceError
from headrace.base.processes import Process, Usage, is_alive, process_of, send_signal, usage_of
from headrace.local_cluster.folder import NodeFolder
from headrace.local_cluster.layout import NodePlan
from headrace.node.configuration.sources import option_name

FILE_BYTES_MAX = 4096
LOG_READ_BYTES_MAX = 1 << 16
LOG_SHOWN_LINES = 12
LINE_BYTES_MAX = 8192  # the announcement is shorter


class NodeState(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class NodeFailed(HeadraceError):
    """A node ended while it started, or did not serve in time; the text ends with the last lines of its log."""


class BackgroundNode:
    """One node of a local cluster, started by this command or by an earlier one."""

    def __init__(self, plan: NodePlan, folder: NodeFolder) -> None:
        self.plan = plan
        self._folder = folder
        self._serves = re.compile(rf"^headrace node {plan.id} of cluster \S+ serves on ".encode(), re.MULTILINE)
        self._launched_at = 0  # size of the log before the last launch
        self._unread_from = 0  # position in the log of the first line that was not searched for the announcement
        self._child: subprocess.Popen[bytes] | None = None  # set if this command launched it

    def process(self) -> Process | None:
        """Return the node's process, or None if it does not run."""
        try:
            with self._folder.process.open("rb") as file:
                found = msgspec.json.decode(file.read(FILE_BYTES_MAX), type=Process)
        except (OSError, msgspec.MsgspecError):
            return None
        return found if is_alive(found) else None

    @property
    def is_running(self) -> bool:
        """Return whether the process exists; a paused one does."""
        return self.process() is not None

    def usage(self) -> Usage | None:
        process = self.process()
        return None if process is None else usage_of(process)

    def state(self) -> NodeState:
        process = self.process()
        if process is None:
            return NodeState.STOPPED
        usage = usage_of(process)
        return NodeState.PAUSED if usage is not None and usage.is_paused else NodeState.RUNNING

    def launch(self, environment: Mapping[str, str]) -> None:
        """Start the process in a session of its own, without waiting: the nodes of a cluster need each other to serve.

        Variables that set options of nodes are left out: they would apply to every node.
        """
        self._launched_at = self._unread_from = self._folder.log.stat().st_size if self._folder.log.exists() else 0
        with self._folder.log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "headrace", "serve", "--config", str(self._folder.properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: value for name, value in environment.items() if option_name(name) is None},
                start_new_session=True,
            )
        process = process_of(self._child.pid)
        if process is not None:  # None: it has ended already, as `is_serving` reports
            fresh = self._folder.process.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(process))
            fresh.replace(self._folder.process)

    def is_serving(self) -> bool:
        """Return whether the launched node has announced its address; raise NodeFailed if it has ended."""
        is_over = self._child is not None and self._child.poll() is not None  # BEFORE its last lines are read
        with self._folder.log.open("rb") as log:
            log.seek(self._unread_from)
            while lines := log.read(LOG_READ_BYTES_MAX):
                if self._serves.search(lines):
                    return True
                self._unread_from += max(lines.rfind(b"\n") + 1, len(lines) - LINE_BYTES_MAX)
                if len(lines) < LOG_READ_BYTES_MAX:
                    break
                log.seek(self._unread_from)
        if is_over and self._child is not None:
            code = self._child.returncode
            raise NodeFailed(f"node {self.plan.id} ended with code {code} instead of serving{self._end_of_log()}")
        return False

    def give_up(self, seconds: float) -> NodeFailed:
        """Return the error of a node that did not serve in time."""
        return NodeFailed(f"node {self.plan.id} did not serve within {seconds:.0f} s{self._end_of_log()}")

    def _end_of_log(self) -> str:
        with self._folder.log.open("rb") as log:
            log.seek(max(self._launched_at, self._folder.log.stat().st_size - LOG_READ_BYTES_MAX))
            lines = log.read().decode(errors="replace").splitlines()[-LOG_SHOWN_LINES:]
        return f"; the end of {self._folder.log}:\n" + "\n".join(f"    {line}" for line in lines)

    def terminate(self) -> None:
        """Send SIGTERM, which a paused process handles when it is resumed, and resume it."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> bool:
        """Send SIGKILL; return False if the node does not run."""
        return self._signal(signal.SIGKILL)

    def pause(self) -> bool:
        """Send SIGSTOP: the process stays alive but does nothing. Return False if the node does not run."""
        return self._signal(signal.SIGSTOP)

    def resume(self) -> bool:
        """Send SIGCONT, which ends a `pause`. Return False if the node does not run."""
        return self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> bool:
        process = self.process()
        return process is not None and send_signal(process, number)
