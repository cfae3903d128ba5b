"""Archives of Spark's classes in Java's in-memory format, which halve the start-up time of every session after the first.

The virtual machine of the first session writes the archive, under a temporary name, when it exits. A later session that finds its writer
gone renames the archive to its final name. There is one archive per Spark version, Java version and Spark installation.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from time import time

from headrace.pipelines.java import Java, mark_of, write_whole

AOT_VERSION_MIN = 25  # Java version: JEP 514 creates a cache in one step, without a base archive
ARCHIVE_BYTES_MIN = 1 << 20
WRITER = ".writer"
MARK_CHARACTERS = 8
STRAY_S_MIN = 3600.0


class ClassArchive:
    def __init__(self, folder: Path, java: Java, spark_version: str, spark_home: Path) -> None:
        self._folder = folder
        self._is_aot = java.feature >= AOT_VERSION_MIN
        self.is_possible = self._is_aot or java.has_base_archive
        ending = "aot" if self._is_aot else "jsa"
        self.path = folder / f"spark-{spark_version}-{_installation(spark_home)}-java-{java.version}.{ending}"
        self._writing: Path | None = None

    def java_options(self) -> list[str]:
        """Return the Java options that use the archive or create it; empty if neither is possible."""
        if not self.is_possible or not self._can_be_written():
            return []
        self._adopt()
        if self.path.exists():
            if self._is_aot:
                return [f"-XX:AOTCache={self.path}", "-XX:AOTMode=auto", "-Xlog:aot=off", "-Xlog:cds=off"]
            return [f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
        if self._is_being_written():
            return []
        self._writing = self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex[:MARK_CHARACTERS]}")
        flag = "AOTCacheOutput" if self._is_aot else "ArchiveClassesAtExit"
        quiet = ["-Xlog:aot=off"] if self._is_aot else []
        return [f"-XX:{flag}={self._writing}", *quiet, "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]

    def written_by(self, process_id: int) -> None:
        """Note the process that writes the archive: the archive is complete once that process has exited."""
        if self._writing is not None:
            write_whole(self._writing.with_name(self._writing.name + WRITER), str(process_id))

    def _can_be_written(self) -> bool:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return False  # an unwritable or full home directory must not prevent a start
        return os.access(self._folder, os.W_OK)

    def _notes(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self.path.name}.*{WRITER}"))

    def _adopt(self) -> None:
        for note in self._notes():
            if _is_alive(note):
                continue
            written = note.with_name(note.name.removesuffix(WRITER))
            try:
                if not self.path.exists() and written.stat().st_size >= ARCHIVE_BYTES_MIN:
                    os.replace(written, self.path)
                written.unlink(missing_ok=True)
            except OSError:
                pass  # another session was faster, or the writer was killed before it wrote anything
            note.unlink(missing_ok=True)
        for stray in self._folder.glob(f"{self.path.name}.{'[0-9a-f]' * MARK_CHARACTERS}"):
            # Its session ended before it could note the writing process.
            with suppress(OSError):
                if not stray.with_name(stray.name + WRITER).exists() and time() > stray.stat().st_mtime + STRAY_S_MIN:
                    stray.unlink()

    def _is_being_written(self) -> bool:
        return any(_is_alive(note) for note in self._notes())


def _installation(spark_home: Path) -> str:
    """Return a mark of the installation: Java silently ignores an archive if the jars have moved or changed."""
    jars = spark_home / "jars"
    changed = jars.stat().st_mtime_ns if jars.is_dir() else 0
    return mark_of(f"{spark_home.resolve()} {changed}")


def _is_alive(note: Path) -> bool:
    try:
        os.kill(int(note.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True
