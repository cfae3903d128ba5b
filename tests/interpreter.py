"""A workaround for a bug of CPython 3.11: it miscounts the recursion depth when it converts a syntax tree to objects.

The counter belongs to the interpreter, not to the conversion. If another thread parses something during a conversion, or the garbage
collector runs code that does, `ast.parse` raises SystemError ("AST constructor recursion depth mismatch"). Hypothesis, inspect and
pytest parse sources all the time, so only one thread may parse at a time, with the collector disabled.
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
