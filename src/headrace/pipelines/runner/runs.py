"""Registers running drivers: a file per pipeline with the address of its driver, and locks on checkpoints.

A driver that was killed leaves its file behind. Its process shows that it is gone, and the next run replaces it once its Spark has exited
too: Spark runs on briefly after its driver dies, and must not write concurrently with the next run. Most exit by themselves; one whose
driver was killed during start-up may hang on exit, and is killed here. Checkpoints are locked as well, because a second driver may be
started in another folder or under another name.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from headrace.base.errors import ConfigError, HeadraceError
from headrace.base.processes import Process, is_alive

FOLDER = "runs"
ENDING = ".json"
FILE_BYTES_MAX = 65_536
CHECKPOINT_LOCK = ".headrace-driver"
SPARK_ENDS_S_MAX = 20.0  # time for Spark to exit by itself
SPARK_DIES_S_MAX = 10.0
_PAUSE_S = 0.2
_OWNER_ONLY = 0o600

_LOG = logging.getLogger("headrace.pipelines")


class AlreadyRunning(HeadraceError):
    """Another driver runs the pipeline or uses its checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One running pipeline of a driver."""

    pipeline: str
    driver: Process
    spark: Process | None = None  # Spark's virtual machine; None until it is started
    port: int = 0  # port on loopback
    token: str = ""
    started_ms: int = 0
    origin: str = ""
    checkpoint: str = ""

    @property
    def is_alive(self) -> bool:
        return is_alive(self.driver)


class Runs:
    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        self._folder = runtime / FOLDER

    def all(self) -> list[Run]:
        """Return all runs by name, including those of drivers that are gone; unreadable files are skipped."""
        if not self._folder.is_dir():
            return []
        found = [self._read(path) for path in sorted(self._folder.glob(f"*{ENDING}"))]
        return [run for run in found if run is not None]

    def find(self, pipeline: str) -> Run | None:
        return self._read(self._path(pipeline))

    def claim(self, run: Run, wait: Callable[[float], None] = time.sleep) -> None:
        """Register the run; raise AlreadyRunning if another driver runs the pipeline.

        Waits for the Spark of a killed driver, and kills it if it does not exit.
        """
        with self._alone():
            before = self.find(run.pipeline)
            if before is not None and before.is_alive:
                raise AlreadyRunning(
                    f"pipeline {run.pipeline} is running already, as process {before.driver.pid};"
                    f" `headrace pipelines stop {run.pipeline}` ends it"
                )
            if before is not None:
                _end_spark_of(before, wait)
            self._write(run)

    def update(self, runs: Sequence[Run]) -> None:
        with self._alone():
            for run in runs:
                self._write(run)

    def release(self, run: Run) -> None:
        """Remove the run's file unless another driver has registered meanwhile."""
        if not self._folder.is_dir():
            return
        with self._alone():
            there = self.find(run.pipeline)
            if there is not None and there.driver == run.driver:
                self._path(run.pipeline).unlink(missing_ok=True)

    def forget(self, run: Run) -> None:
        """Remove the run's file if its driver is gone."""
        if not run.is_alive:
            self.release(run)

    def _path(self, pipeline: str) -> Path:
        return self._folder / f"{quote(pipeline, safe=' ')}{ENDING}"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of this folder."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise ConfigError(f"the folder {self._folder} cannot be used: {error.strerror or error}") from error

    def _write(self, run: Run) -> None:
        """Write the file atomically."""
        path = self._path(run.pipeline)
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY), "w") as file:
            json.dump(asdict(run), file)
        fresh.replace(path)

    def _read(self, path: Path) -> Run | None:
        try:
            with path.open() as file:
                found = json.loads(file.read(FILE_BYTES_MAX))
            return _run_of(unquote(path.name.removesuffix(ENDING)), found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def _run_of(pipeline: str, found: dict[str, Any]) -> Run:
    spark = found.get("spark")
    return Run(
        pipeline=pipeline,
        driver=_process(found["driver"]),
        spark=None if spark is None else _process(spark),
        port=int(found["port"]),
        token=str(found["token"]),
        started_ms=int(found["started_ms"]),
        origin=str(found["origin"]),
        checkpoint=str(found["checkpoint"]),
    )


def _process(found: Sequence[Any]) -> Process:
    pid, started = found
    return Process(int(pid), str(started))


def _end_spark_of(run: Run, wait: Callable[[float], None]) -> None:
    if run.spark is None or not is_alive(run.spark):
        return
    _LOG.info(
        "the driver of %s was killed, but its Spark process %d is still running; stopping it",
        run.pipeline,
        run.spark.pid,
    )
    if _has_ended(run.spark, SPARK_ENDS_S_MAX, wait):
        return
    _LOG.warning("Spark process %d did not exit within %g s; killing it", run.spark.pid, SPARK_ENDS_S_MAX)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(run.spark.pid, signal.SIGKILL)
    if not _has_ended(run.spark, SPARK_DIES_S_MAX, wait):
        raise AlreadyRunning(
            f"the driver of pipeline {run.pipeline} was killed, but its Spark still runs, as process {run.spark.pid}"
        )


def _has_ended(process: Process, seconds: float, wait: Callable[[float], None]) -> bool:
    for _ in range(round(seconds / _PAUSE_S)):
        if not is_alive(process):
            return True
        wait(_PAUSE_S)
    return not is_alive(process)


# --- checkpoints


@contextmanager
def locked(pipeline: str, checkpoint: str, driver: Process) -> Iterator[None]:
    """Lock the checkpoint until the context or the process ends; raise AlreadyRunning if another driver uses it."""
    folder = local_folder(checkpoint)
    if folder is None:
        yield
        return
    file = _lock(pipeline, folder, driver)
    try:
        yield
    finally:
        os.close(file)


def local_folder(checkpoint: str) -> Path | None:
    """Return the folder, or None for a checkpoint that is not local, such as hdfs://…, which cannot be locked."""
    parts = urlsplit(checkpoint)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if len(parts.scheme) > 1 else Path(checkpoint)


def _lock(pipeline: str, folder: Path, driver: Process) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / CHECKPOINT_LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"the checkpoint {folder} of pipeline {pipeline} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, 0)
        os.pwrite(file, f"{driver.pid} {pipeline}".encode(), 0)
    except OSError as error:
        holder = os.pread(file, 1024, 0).decode(errors="replace").split(maxsplit=1)
        os.close(file)
        if not isinstance(error, BlockingIOError):
            raise ConfigError(f"the checkpoint {folder} cannot be locked: {error.strerror}") from error
        who = f"process {holder[0]}, pipeline {holder[1]}" if len(holder) == 2 else "another driver"
        raise AlreadyRunning(f"the checkpoint {folder} of pipeline {pipeline} is in use by {who}") from None
    return file
