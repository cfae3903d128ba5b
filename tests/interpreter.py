"""A fault of CPython 3.11 that strikes tests: it loses count of the depth of a syntax tree that it turns into objects.

The count belongs to the interpreter, not to the conversion. If another thread parses something in the middle, or the garbage collector
runs code that does, `ast.parse` raises SystemError ("AST constructor recursion depth mismatch"). Hypothesis, inspect and pytest parse
sources all the time, so here only one thread does so at a time, and the collector waits.
"""

from __future__ import annotations

import ast
import functools
import gc
import sys
import threading
from typing import Any

_lock = threading.RLock()


def guard_syntax_trees() -> None:
    """Make `ast.parse` safe to call from several threads."""
    if sys.version_info >= (3, 12) or hasattr(ast.parse, "__wrapped__"):
        return
    parse = ast.parse

    @functools.wraps(parse)
    def guarded(*args: Any, **named: Any) -> Any:
        with _lock:
            collects = gc.isenabled()
            gc.disable()
            try:
                return parse(*args, **named)
            finally:
                if collects:
                    gc.enable()

    ast.parse = guarded
