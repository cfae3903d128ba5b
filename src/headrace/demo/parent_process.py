"""Ends a process when its parent ends: its standard input is a pipe from the parent, and the process ends at EOF.

No process is left over, even after a `kill -9` of the parent.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
import time

CLEANLY_S_MAX = 30.0
READ_BYTES = 4096


def end_with_parent() -> None:
    """Send SIGTERM to this process when the pipe on its standard input ends, and SIGKILL after CLEANLY_S_MAX."""
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=_watch, name="parent", daemon=True).start()


def _watch() -> None:
    while os.read(0, READ_BYTES):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(CLEANLY_S_MAX)
    os.kill(os.getpid(), signal.SIGKILL)
