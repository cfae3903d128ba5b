"""A real Apache Kafka for comparison: its jars from Maven Central, one combined node on loopback, and its tools.

Needs a JDK (17 or newer) and, on first use, Maven. `available` reports what is missing; `require_kafka` skips a test without it.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from uuid import uuid4

from headrace.client.wire.frames import encode_request
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.testing.processes import LOOPBACK, ProcessFailed, free_port

VERSION = "4.3.1"
LOG4J_VERSION = "2.25.1"  # Kafka's POMs do not depend on a logging back end
DOWNLOAD_S_MAX = 600.0
FORMAT_S_MAX = 60.0
START_S_MAX = 90.0
STOP_S_MAX = 60.0
TOOL_S_MAX = 120.0
PROBE_S = 2.0
HEAP = ("-Xms256M", "-Xmx512M")
SERVER_OPTIONS = ("-XX:+UseG1GC",)
# A short-lived JVM exits before optimized compilation pays off; fewer GC and compiler threads leave the other cores free.
SHORT_LIVED_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
TOOL_OPTIONS = ("-Xmx512M", *SHORT_LIVED_OPTIONS, "-Xshare:auto")

Artifact = tuple[str, str, str]  # Maven coordinates: group, name, version

_ARTIFACTS: tuple[Artifact, ...] = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
    ("org.apache.logging.log4j", "log4j-core", LOG4J_VERSION),
    ("org.apache.logging.log4j", "log4j-1.2-api", LOG4J_VERSION),
)
# Main classes by the name of the script in Kafka's bin directory, without kafka- and .sh.
_MAIN_CLASSES = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "storage": "kafka.tools.StorageTool",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
}
_LOGGING = """\
rootLogger.level = WARN
rootLogger.appenderRef.errors.ref = Errors
appender.errors.type = Console
appender.errors.name = Errors
appender.errors.target = SYSTEM_ERR
appender.errors.layout.type = PatternLayout
appender.errors.layout.pattern = [%d] %p %m (%c)%n
"""


def libraries() -> Path:
    """Return the directory for Kafka's jars: HEADRACE_KAFKA_LIBS, or else one in ~/.cache/headrace."""
    given = os.environ.get("HEADRACE_KAFKA_LIBS")
    return Path(given) if given else Path("~/.cache/headrace").expanduser() / f"kafka-{VERSION}"


@cache
def available() -> str | None:
    """Return None if Kafka can run here, downloading it on first use; otherwise return the reason."""
    if shutil.which("java") is None:
        return "no JDK: java is not on the path"
    return fetched(f"Kafka {VERSION}", libraries(), _ARTIFACTS)


def require_kafka() -> None:
    """Skip the test if Kafka cannot run here; in CI (CI=true), fail the test instead."""
    import pytest

    reason = available()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must be able to run real Kafka: {reason}")
        pytest.skip(reason)


def fetched(
    what: str, target: Path, artifacts: Iterable[Artifact], *, alone: bool = False, jar: str = "kafka-clients-*.jar"
) -> str | None:
    """Fetch jars unless `target` already has a match for `jar`; return None on success, otherwise the reason.

    `alone` leaves out their dependencies.
    """
    if any(target.glob(jar)):
        return None
    if shutil.which("mvn") is None:
        return f"no Maven to fetch {what} with: mvn is not on the path"
    try:
        _download(target, _pom(artifacts, alone), jar)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{what} could not be fetched from Maven Central: {error}"
    return None


def _download(target: Path, pom: str, jar: str) -> None:
    """Download the jars atomically and only once; concurrent callers wait for the lock."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if any(target.glob(jar)):
            return
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as work:
            Path(work, "pom.xml").write_text(pom)
            done = subprocess.run(
                ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars", "-DincludeScope=runtime"],
                cwd=work,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DOWNLOAD_S_MAX,
            )
            if done.returncode != 0:
                raise OSError(f"mvn ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
            if target.is_dir():
                target.rmdir()  # an empty directory that HEADRACE_KAFKA_LIBS points to
            Path(work, "jars").rename(target)


def _pom(artifacts: Iterable[Artifact], alone: bool) -> str:
    nothing = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{nothing if alone else ''}</dependency>"
        for group, artifact, version in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>headrace</groupId><artifactId>kafka-peer</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{wanted}</dependencies></project>"
    )


@cache
def _logging_file() -> str:
    """Write the logging configuration once per process, and remove it at exit."""
    descriptor, path = tempfile.mkstemp(prefix="headrace-log4j2-", suffix=".properties")
    with open(descriptor, "w") as file:
        file.write(_LOGGING)
    atexit.register(Path(path).unlink, missing_ok=True)
    return path


def java(
    main_class: str, *arguments: str, options: tuple[str, ...] = TOOL_OPTIONS, classes: Path | None = None
) -> list[str]:
    """Return the command line that runs a class of Kafka, or one in the directory `classes` that uses Kafka's."""
    logging = f"-Dlog4j2.configurationFile={_logging_file()}"
    path = f"{libraries()}/*" if classes is None else f"{classes}{os.pathsep}{libraries()}/*"
    return ["java", *options, "-Djava.awt.headless=true", logging, "-cp", path, main_class, *arguments]


def tool(
    name: str, *arguments: str, input: bytes | None = None, timeout_s: float = TOOL_S_MAX
) -> subprocess.CompletedProcess[bytes]:
    """Run one of Kafka's command-line tools; `name` is the NAME in kafka-NAME.sh."""
    return subprocess.run(
        java(_MAIN_CLASSES[name], *arguments), input=input or b"", capture_output=True, timeout=timeout_s
    )


def new_cluster_id() -> str:
    """Return a random cluster id like those of Kafka's `storage random-uuid`, without a leading dash; needs no JVM."""
    while (made := base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return made


class KafkaPeer:
    """One node of real Kafka, a combined broker and controller."""

    tool = staticmethod(tool)
    server_options: tuple[str, ...] = SERVER_OPTIONS

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        directory: Path | str | None = None,
        heap: tuple[str, ...] = HEAP,
        cluster_id: str | None = None,
        format_options: tuple[str, ...] = (),
    ) -> None:
        """Prepare a node with its data and log in `directory`, by default a temporary one."""
        self.settings = dict(settings or {})
        self._heap = heap
        self._cluster_id = cluster_id
        self.format_options = format_options
        self._temporary = tempfile.TemporaryDirectory(prefix="kafka-peer-") if directory is None else None
        self._directory = Path(self._temporary.name if self._temporary is not None else str(directory))
        self._process: subprocess.Popen[bytes] | None = None
        self.data_dir = self._directory / "data"
        self.log_file = self._directory / "kafka.log"
        self.port = free_port()
        self.controller_port = free_port()

    def __enter__(self) -> KafkaPeer:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "start comes first"
        return self._process.pid

    def properties(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self.port},CONTROLLER://{LOOPBACK}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@{LOOPBACK}:{self.controller_port}",
            "log.dirs": str(self.data_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self.settings,
        }

    def start(self) -> KafkaPeer:
        """Start the node and return when it responds; raise ProcessFailed with its log if it does not.

        An empty data directory is formatted first.
        """
        self.launch()
        self.wait_until_it_responds()
        return self

    def launch(self) -> None:
        """Launch the process without waiting for it: the nodes of a cluster respond only after a quorum has started."""
        assert self._process is None, "it is running already"
        self._directory.mkdir(parents=True, exist_ok=True)
        file = self._directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in self.properties().items()))
        if not (self.data_dir / "meta.properties").exists():
            self._format(file)
        options = (*self._heap, *self.server_options, f"-Dkafka.logs.dir={self._directory}/logs")
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                java("kafka.Kafka", str(file), options=options), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _format(self, file: Path) -> None:
        done = tool(
            "storage",
            "format",
            "-t",
            self._cluster_id or new_cluster_id(),
            "-c",
            str(file),
            *self.format_options,
            timeout_s=FORMAT_S_MAX,
        )
        if done.returncode != 0:
            raise ProcessFailed(f"Kafka could not format {self.data_dir}: {(done.stdout + done.stderr).decode()}")

    def wait_until_it_responds(self) -> None:
        try:
            self._wait_until_it_responds()
        except BaseException:
            self.kill()
            raise

    def _wait_until_it_responds(self) -> None:
        ask = b"".join(encode_request(ApiVersionsRequest(), 0, 1, "headrace"))
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self.port), PROBE_S) as probe:
                probe.sendall(ask)
                if len(probe.recv(8)) == 8:
                    return
            time.sleep(0.1)
        raise ProcessFailed(f"Kafka did not serve on {self.bootstrap}; its log:\n{self.log_text()[-4000:]}")

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if the process does not exit in time."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S_MAX)
            self._process = None

    def close(self) -> None:
        """Stop the node, and remove the data if it is in a temporary directory."""
        self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def log_text(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
