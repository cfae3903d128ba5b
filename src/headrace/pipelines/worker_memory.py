"""Keeps long-lived objects out of the garbage collections of Spark's Python workers.

A worker collects garbage after every task and visits all objects: a hundred thousand from imported modules, which takes 58 ms of CPU time,
longer than most tasks of a stream. Objects that a worker keeps anyway are frozen.
"""

from __future__ import annotations

import gc
import sys

DAEMON = "pyspark.daemon"
TIMES_MAX = 4  # the first tasks, of a source and of a sink, import modules and create what the worker keeps: connections, codecs

_times = 0


def put_aside() -> None:
    """Freeze the objects that exist at the start of a task; does nothing outside Spark's workers."""
    global _times
    if _times < TIMES_MAX and _is_worker():
        _times += 1
        gc.collect()
        gc.freeze()


def _is_worker() -> bool:
    """Return whether Spark's daemon forked this process; the main module of a worker is then still the daemon's."""
    return getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None) == DAEMON
