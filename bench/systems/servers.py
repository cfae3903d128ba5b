"""The servers under test: Headrace, Apache Kafka and the C ceiling."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from testkit.kafka_peer import KafkaPeer

from bench.errors import BenchFailed, CannotRun
from bench.native.programs import compiled_program
from bench.systems.certificate import Certificate
from bench.systems.processes import rss_bytes
from bench.systems.requests import (
    READY_S_MAX,
    RETRY_S,
    Connection,
    create_topic,
    delete_topic,
    new_producer_id,
    wait_until_served,
)
from headrace.testing.processes import LOOPBACK, NodeProcess, free_port

HEADRACE, KAFKA, CEILING = "Headrace", "Kafka", "C ceiling"
# The values of Kafka's start scripts.
KAFKA_HEAP = (
    "-Xms1G",
    "-Xmx1G",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
# For both servers: rebalances start at once, and dead members time out as early as classic consumers could request.
GROUP_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
}
# Deleted topics would fill the disk otherwise: by default Kafka's first check comes after 30 s and deletion a minute
# later.
KAFKA_SETTINGS = {"log.segment.delete.delay.ms": "200", "log.initial.task.delay.ms": "500", **GROUP_SETTINGS}

Process = NodeProcess | KafkaPeer


@dataclass(frozen=True)
class TlsListener:
    """A server's TLS listener, in addition to its plain port, and its certificate."""

    port: int
    certificate: Certificate

    @property
    def address(self) -> str:
        return f"SSL://{LOOPBACK}:{self.port}"


class Spawn(Protocol):
    def __call__(self, directory: Path, tls: TlsListener | None = None) -> Process:
        """Return a process that is not started yet."""


class System(Protocol):
    """A system under test: a server, or a client together with the server that it uses."""

    @property
    def name(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def tls(self) -> TlsListener:
        """Return the TLS listener. Raise CannotRun if there is none."""

    def new_producer_id(self) -> tuple[int, int]: ...
    def create_topic(self, name: str, partitions: int) -> None:
        """Create the topic and wait until all of its partitions are served."""

    def delete_topic(self, name: str) -> None:
        """Delete the topic with its data."""

    def close(self) -> None: ...


def spawn_headrace(directory: Path, tls: TlsListener | None = None) -> NodeProcess:
    """Return a node process with /metrics enabled, as users run it."""
    settings = {"headrace.http.listener": f"{LOOPBACK}:{free_port()}", **GROUP_SETTINGS}
    if tls is None:
        return NodeProcess(settings, directory=directory)
    port = free_port()
    listeners = f"PLAINTEXT://{LOOPBACK}:{port},{tls.address}"
    settings |= {"listeners": listeners, "advertised.listeners": listeners, **tls.certificate.settings()}
    node = NodeProcess(settings, directory=directory)
    node.port = port
    return node


def spawn_kafka(directory: Path, tls: TlsListener | None = None) -> KafkaPeer:
    if tls is None:
        return KafkaPeer(KAFKA_SETTINGS, directory=directory, heap=KAFKA_HEAP)
    return _KafkaWithTls(tls, directory)


class _KafkaWithTls(KafkaPeer):
    def __init__(self, tls: TlsListener, directory: Path) -> None:
        super().__init__({**KAFKA_SETTINGS, **tls.certificate.settings()}, directory=directory, heap=KAFKA_HEAP)
        self._tls = tls

    def properties(self) -> dict[str, str]:
        properties = super().properties()
        for name in ("listeners", "advertised.listeners"):
            properties[name] += f",{self._tls.address}"
        properties["listener.security.protocol.map"] += ",SSL:SSL"
        return properties


def stop_cleanly(process: Process) -> None:
    if isinstance(process, NodeProcess):
        process.terminate()
    else:
        process.stop()


class Broker:
    """A server that is started when first needed and kept warm until `close`."""

    def __init__(self, name: str, directory: Path, spawn: Spawn, certificate: Certificate | None = None) -> None:
        self.name = name
        self.directory = directory
        self.spawn = spawn
        self._certificate = certificate
        self._tls: TlsListener | None = None
        self._process: Process | None = None
        self._connection: Connection | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def process(self) -> Process:
        if self._process is None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self._tls = None if self._certificate is None else TlsListener(free_port(), self._certificate)
            self._process = self.spawn(self.directory.absolute(), self._tls)
            self._process.start()
            self._connection = Connection(self._process.port)
        return self._process

    @property
    def connection(self) -> Connection:
        _ = self.process
        assert self._connection is not None
        return self._connection

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def tls(self) -> TlsListener:
        _ = self.process
        if self._tls is None:
            raise CannotRun("openssl is not installed; it is needed to make a certificate")
        return self._tls

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)

    def new_producer_id(self) -> tuple[int, int]:
        return new_producer_id(self.connection)

    def create_topic(self, name: str, partitions: int) -> None:
        create_topic(self.connection, name, partitions)
        wait_until_served(self.connection, name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete the topic and wait until its files are gone, to free disk and page cache for the next one."""
        delete_topic(self.connection, name)
        deadline = time.monotonic() + READY_S_MAX
        # The pattern excludes topics whose name only starts with this one.
        partition_directory = re.compile(rf"{re.escape(name)}-[0-9]+([.].*)?")
        while any(partition_directory.fullmatch(path.name) for path in self.process.data_dir.iterdir()):
            if time.monotonic() > deadline:
                raise BenchFailed(f"{self.name} still has files of {name} after {READY_S_MAX:.0f} s")
            time.sleep(RETRY_S)

    def close(self) -> None:
        """Kill the process and remove its data."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.close()
        self._process = self._connection = None
        shutil.rmtree(self.directory, ignore_errors=True)


class Ceiling:
    """The server of bench/native/ceiling.c, with a new process for every topic."""

    name = CEILING

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "there is no process before the first topic"
        return self._process.pid

    @property
    def tls(self) -> TlsListener:
        raise CannotRun("the ceiling does not support TLS")

    def new_producer_id(self) -> tuple[int, int]:
        return 0, 0

    def create_topic(self, name: str, partitions: int) -> None:
        program = compiled_program("ceiling")
        assert program is not None, "the ceiling is only used if it can be compiled"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen([str(program), str(self.directory)], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def delete_topic(self, name: str) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None
        shutil.rmtree(self.directory, ignore_errors=True)
