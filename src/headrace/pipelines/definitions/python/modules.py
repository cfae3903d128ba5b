"""Runs user files as modules: each runs once, may import modules from its folder, and is not left in sys.modules.

Because the modules are not in sys.modules, Spark pickles their functions and classes by value; workers could not import them by name.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_LOCK = threading.RLock()  # sys.path and sys.modules belong to the whole process


def run_file(path: Path) -> ModuleType:
    """Run the file as a module; exceptions of the file propagate."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    code = compile(path.read_bytes(), str(path), "exec")
    with _neighbours(path.parent):
        sys.modules[path.stem] = module
        exec(code, module.__dict__)
    return module


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """Make modules of the folder importable inside, hiding modules of the same names from elsewhere."""
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
