"""Processes in separate system sessions, each with all processes that it starts, in whatever process group.

The first process of a session is reaped only after the others have exited, so that its pid is not reused.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

import psutil

from tools.prove.registry import ROOT

ENDED_S_MAX = 60.0
POLL_S = 0.02


class Session:
    """A command in its own system session."""

    def __init__(
        self, command: Sequence[str], errors: IO[bytes], environment: Mapping[str, str], *, with_pipes: bool = False
    ) -> None:
        self._is_closed = False
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE if with_pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if with_pipes else errors,
            stderr=errors,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    @property
    def ended(self) -> Any:
        """Exit status of the first process, or None while it runs."""
        return None if self._is_closed else os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)

    def wait(self, seconds_max: float) -> bool:
        """Wait for the first process to exit and return whether it did."""
        deadline = time.monotonic() + seconds_max
        while self.ended is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def members(self) -> list[psutil.Process]:
        """Return the processes of the session besides the first."""
        if self._is_closed:
            return []
        return [one for one in psutil.process_iter() if one.pid != self.process.pid and self._has(one.pid)]

    def _has(self, process_id: int) -> bool:
        try:
            return os.getsid(process_id) == self.process.pid
        except OSError:
            return False

    def kill_group(self) -> None:
        """Kill the first process and its process group."""
        if not self._is_closed:
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill everything that is left of the session."""
        if self._is_closed:
            return
        self.kill_group()
        deadline = time.monotonic() + ENDED_S_MAX
        while members := self.members():
            assert time.monotonic() < deadline, f"processes could not be killed: {members}"
            for one in members:
                with suppress(psutil.Error):
                    one.kill()
            time.sleep(POLL_S)
        self.process.wait(ENDED_S_MAX)
        self._is_closed = True
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
