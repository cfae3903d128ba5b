"""The C programs of the benchmark, compiled when first needed."""

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
def has_openssl() -> bool:
    """Return whether C programs can be compiled and linked with OpenSSL."""
    cc = compiler()
    command = [str(cc), "-x", "c", "-", "-o", os.devnull, "-lssl", "-lcrypto"]
    return cc is not None and _succeeds(command, _WITH_OPENSSL)


def _succeeds(command: list[str], given: str) -> bool:
    return subprocess.run(command, input=given, text=True, capture_output=True, timeout=COMPILE_S_MAX).returncode == 0


@cache
def program(name: str) -> Path | None:
    """Return the path of the compiled program, or None without a C compiler or the OpenSSL it needs."""
    cc = compiler()
    source, options = PROGRAMS[name]
    if cc is None or ("-lssl" in options and not has_openssl()):
        return None
    parts = [(HERE / file).read_bytes() for file in (source, *HEADERS)]
    digest = hashlib.sha256(b"".join((*parts, " ".join(options).encode()))).hexdigest()[:12]
    target = WORK / "bin" / f"{name}-{digest}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        command = [cc, *FLAGS, "-o", str(fresh), str(HERE / source), *options]
        subprocess.run(command, check=True, timeout=COMPILE_S_MAX)
        fresh.rename(target)
    return target
