"""Files of users as modules: they run once, may import what lies beside them, and leave no trace among the modules of this process.

That they are not among them is why Spark sends their functions and classes to its workers whole, instead of by names that mean
nothing there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_LOCK = threading.RLock()  # what imports see is one for the whole process


def run_file(path: Path) -> ModuleType:
    """Raises whatever the file raises."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    code = compile(path.read_bytes(), str(path), "exec")
    with _neighbours(path.parent):
        sys.modules[path.stem] = module
        exec(code, module.__dict__)
    return module


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """While it lasts, modules of the folder are found by their names, and none of the same name from elsewhere is in the way."""
    names = {one.stem for one in folder.glob("*.py")} | {one.parent.name for one in folder.glob("*/__init__.py")}
    with _LOCK:
        hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in names}
        for name in hidden:
            del sys.modules[name]
        sys.path.insert(0, str(folder))
        try:
            yield
        finally:
            sys.path.remove(str(folder))
            for name in [name for name in sys.modules if name.partition(".")[0] in names]:
                del sys.modules[name]
            sys.modules.update(hidden)
