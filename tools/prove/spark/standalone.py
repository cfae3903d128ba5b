"""A Spark standalone cluster on loopback, whose single-core workers can be killed with everything they run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from headrace.pipelines.java import cache_folder, find_java, home_for_spark
from headrace.testing.processes import LOOPBACK, free_port
from tools.prove.spark.sessions import POLL_S, Session

START_S_MAX = 120.0
WORKER_MEMORY = "1536m"
DAEMON_MEMORY = "256m"
EXECUTOR = "CoarseGrainedExecutorBackend"
LOG_SHOWN_CHARACTERS = 2000


def environment() -> dict[str, str]:
    """Return the environment of all daemons and of the driver, which keeps them on this machine."""
    return {"SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}


class Daemon:
    """A master or worker process of Spark."""

    def __init__(self, name: str, folder: Path, main_class: str, *arguments: str, host: str = LOOPBACK) -> None:
        import pyspark

        self.name = name
        self._log = folder / f"{name}.log"
        home = Path(pyspark.__file__).parent
        given = {
            "JAVA_HOME": str(home_for_spark(find_java(), cache_folder())),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_HOME": str(home),
        }
        command = [str(home / "bin" / "spark-class"), main_class, "--host", host, *arguments]
        with self._log.open("wb") as log:
            self._session = Session(command, log, {**environment(), **given})

    def wait_for(self, text: str) -> None:
        """Wait until the log contains the text."""
        deadline = time.monotonic() + START_S_MAX
        while text not in (log := self._log.read_text(errors="replace")):
            assert self._session.ended is None, f"{self.name} has exited: {log[-LOG_SHOWN_CHARACTERS:]}"
            assert time.monotonic() < deadline, (
                f"{self.name} did not log {text!r} within {START_S_MAX:.0f} s: {log[-LOG_SHOWN_CHARACTERS:]}"
            )
            time.sleep(POLL_S)

    @property
    def has_executor(self) -> bool:
        return any(_runs(one, EXECUTOR) for one in self._session.members())

    def kill(self) -> None:
        """Kill the daemon with its executor and Python processes, as if the machine were gone."""
        self._session.close()


def _runs(process: psutil.Process, name: str) -> bool:
    try:
        return any(name in part for part in process.cmdline())
    except psutil.Error:
        return False


class Standalone:
    """A cluster of a master and workers on this machine."""

    def __init__(self, folder: Path, workers: int, *, on_one_host: bool = True) -> None:
        """Start the cluster. With `on_one_host=False`, each worker has another address, like another machine."""
        self._folder = folder
        self._on_one_host = on_one_host
        self._port = free_port()
        self.workers: list[Daemon] = []
        ports = ("--port", str(self._port), "--webui-port", str(free_port()))
        self._daemons = [Daemon("master", folder, "org.apache.spark.deploy.master.Master", *ports)]
        try:
            self._daemons[0].wait_for("I have been elected leader")
            for _ in range(workers):
                self.add_worker()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"spark://{LOOPBACK}:{self._port}"

    def add_worker(self) -> Daemon:
        name = f"worker-{len(self.workers) + 1}"
        size = ("--cores", "1", "--memory", WORKER_MEMORY, "--webui-port", str(free_port()))
        folder = ("--work-dir", str(self._folder / name))
        host = LOOPBACK if self._on_one_host else f"127.0.0.{2 + len(self.workers)}"
        main_class = "org.apache.spark.deploy.worker.Worker"
        worker = Daemon(name, self._folder, main_class, *size, *folder, self.url, host=host)
        self.workers.append(worker)
        self._daemons.append(worker)
        worker.wait_for("Successfully registered with master")
        return worker

    def wait_until(self, done: Callable[[], bool], poll: Callable[[], None], what: str) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not done():
            assert time.monotonic() < deadline, f"not within {START_S_MAX:.0f} s: {what}"
            poll()

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill()

    def __enter__(self) -> Standalone:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
