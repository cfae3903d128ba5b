"""Ties a process to the one that started it: its standard input is a pipe from there, and where that ends, so does the process.

`python -m headrace.demo.attached serve …` is `headrace serve …`, tied. Whatever becomes of the parent, kill -9 too, nothing is left over.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time

CLEANLY_S_MAX = 30.0
READ_BYTES = 4096


def end_with_parent() -> None:
    """SIGTERM to ourselves when standard input ends, if it is a pipe; SIGKILL if that does not help."""
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=_watch, name="parent", daemon=True).start()


def _watch() -> None:
    while os.read(0, READ_BYTES):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(CLEANLY_S_MAX)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from headrace.cli.main import main

    end_with_parent()
    sys.argv[0] = "headrace"
    main()
