"""After every task Spark's Python workers collect garbage, and look at all objects there are: a hundred thousand of imported modules, 58 ms
of processor time, more than most tasks of a stream take. What a worker keeps anyway is put aside.
"""

from __future__ import annotations

import gc
import sys

DAEMON = "pyspark.daemon"
TIMES_MAX = 4  # the first tasks, of a source and of a sink, import modules and make what they keep: connections, codecs

_times = 0


def put_aside() -> None:
    """At the beginning of a task; elsewhere it does nothing."""
    global _times
    if _times < TIMES_MAX and _is_worker():
        _times += 1
        gc.collect()
        gc.freeze()


def _is_worker() -> bool:
    """Forked by Spark's daemon, whose main module is then still the worker's."""
    return getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None) == DAEMON
