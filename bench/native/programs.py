"""Compilation of the C programs, when they are first needed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from bench.paths import WORK

SOURCES = Path(__file__).parent
COMPILE_S_MAX = 60.0
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")
# Name: source file and additional compiler arguments.
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ceiling": ("ceiling.c", ()),
    "load": ("load.c", ()),
    "load-tls": ("load.c", ("-DWITH_TLS", "-lssl", "-lcrypto")),
}
HEADERS = ("crc32c.h", "transport.h")
_WITH_OPENSSL = "#include <openssl/ssl.h>\nint main(void) { return SSL_CTX_new(TLS_client_method()) == 0; }\n"


@cache
def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


@cache
def has_openssl(cc: str) -> bool:
    """Return whether C programs can be compiled and linked with OpenSSL."""
    command = [cc, "-x", "c", "-", "-o", os.devnull, "-lssl", "-lcrypto"]
    compiled = subprocess.run(command, input=_WITH_OPENSSL, text=True, capture_output=True, timeout=COMPILE_S_MAX)
    return compiled.returncode == 0


@cache
def compiled_program(name: str) -> Path | None:
    """Return the path of the compiled program, or None without a C compiler or the OpenSSL it needs."""
    cc = compiler()
    source, options = PROGRAMS[name]
    if cc is None or ("-lssl" in options and not has_openssl(cc)):
        return None
    parts = [(SOURCES / file).read_bytes() for file in (source, *HEADERS)]
    digest = hashlib.sha256(b"".join((*parts, " ".join(options).encode()))).hexdigest()[:12]
    target = WORK / "bin" / f"{name}-{digest}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_suffix(f".{os.getpid()}")
        command = [cc, *FLAGS, "-o", str(temporary), str(SOURCES / source), *options]
        subprocess.run(command, check=True, timeout=COMPILE_S_MAX)
        temporary.rename(target)
    return target
