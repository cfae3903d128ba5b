"""The two C programs of the benchmark, compiled when they are first needed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
WORK = ROOT / ".work" / "bench"
COMPILE_S_MAX = 60.0
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")


@cache
def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


@cache
def program(name: str) -> Path | None:
    """The program made from NAME.c, or None where there is no C compiler."""
    cc = compiler()
    if cc is None:
        return None
    sources = [HERE / f"{name}.c", HERE / "crc32c.h"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    target = WORK / "bin" / f"{name}-{digest}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        subprocess.run([cc, *FLAGS, "-o", str(fresh), str(sources[0])], check=True, timeout=COMPILE_S_MAX)
        fresh.rename(target)
    return target
