"""The lines of the client chapter: Headrace's client and confluent-kafka transfer Arrow rows on the same server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec

from bench.client.program import ClientJob, ClientResult
from bench.errors import BenchFailed, CannotRun
from bench.line import Figure, Line, Measurement, Options
from bench.load.data_sets import PARTITIONS, SMALL, SMALL_ZSTD, DataSet, TopicCache, total_end_offset
from bench.paths import ROOT
from bench.systems.clients import CONFLUENT, MeasuredClient, server_named, server_suffix
from bench.systems.servers import HEADRACE, KAFKA, Broker, System
from headrace.testing.processes import LOOPBACK

SLACK_S = 60.0  # time beyond that of the job itself before the program counts as hung
GOAL = 5.0
FIGURES = (
    Figure("rows_per_s", "rows/s", True, goal=GOAL),
    Figure("cpu_ns_per_row", "the client's CPU, ns/row", False),
)
_PROGRAMS = {HEADRACE: "headrace", CONFLUENT: "confluent"}


@dataclass(frozen=True)
class ClientThroughput:
    name: str
    title: str
    operation: str
    data: DataSet
    server: str
    topic_cache: TopicCache = field(repr=False)
    figures: tuple[Figure, ...] = FIGURES
    against: tuple[str, ...] = (CONFLUENT,)
    alone: bool = False
    warm_rounds: int = 1

    def measured_clients(self, servers: Mapping[str, Broker]) -> list[System]:
        for name, package in ((HEADRACE, "pyarrow"), (CONFLUENT, "confluent_kafka")):
            if find_spec(package) is None:
                raise CannotRun(f"{name}: {package} is not installed")
        return [MeasuredClient(name, server_named(servers, self.server)) for name in _PROGRAMS]

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, MeasuredClient)
        if self.operation == "produce":
            return self._produce(system, topic, options)
        records = self.data.whole_batches(options.records)
        filled = self.topic_cache.filled_topic(system.server, self.data, records)
        return _measurement(self._run(system, filled, records, options))

    def _produce(self, client: MeasuredClient, topic: str, options: Options) -> Measurement:
        self.topic_cache.clear()
        records = options.records
        if options.bytes_max:
            records = min(records, options.bytes_max // self.data.value_bytes // 2)  # the warm-up writes too
        client.create_topic(topic, PARTITIONS)
        try:
            result = self._run(client, topic, records, options)
            stored = total_end_offset(client.server, topic)
        finally:
            client.delete_topic(topic)
        if stored != result.all_rows:
            raise BenchFailed(f"{client.name} sent {result.all_rows} rows, but the topic has {stored}")
        return _measurement(result)

    def _run(self, client: MeasuredClient, topic: str, records: int, options: Options) -> ClientResult:
        job = ClientJob(
            client=_PROGRAMS[client.name],
            operation=self.operation,
            bootstrap=f"{LOOPBACK}:{client.port}",
            topic=topic,
            partitions=PARTITIONS,
            value_bytes=self.data.value_bytes,
            codec=self.data.codec.name.lower(),
            records=records,
            seconds=options.span.seconds,
            warm_seconds=options.span.warm,
        )
        return run_client(job)


def run_client(job: ClientJob) -> ClientResult:
    """Run the client program in a process. Raise BenchFailed with its stderr if it fails or counts no rows."""
    command = [sys.executable, "-m", "bench.client.program", json.dumps(asdict(job))]
    timeout_s = job.seconds + job.warm_seconds + SLACK_S
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{job.client} could not {job.operation} within {timeout_s:.0f} s") from None
    if process.returncode != 0:
        raise BenchFailed(f"{job.client} could not {job.operation}: {process.stderr.strip()[-1000:]}")
    result = ClientResult(**json.loads(process.stdout))
    if not result.rows:
        raise BenchFailed(f"{job.client}: the warm-up left nothing to {job.operation}")
    return result


def _measurement(result: ClientResult) -> Measurement:
    return Measurement(
        {"rows_per_s": result.rows / result.seconds, "cpu_ns_per_row": result.cpu_s / result.rows * 1e9}, asdict(result)
    )


def client_lines() -> list[Line]:
    topic_cache = TopicCache()
    titles = {"produce": "Arrow rows of {} into a topic", "consume": "a topic into Arrow rows of {}"}
    lines: list[Line] = []
    for server in (HEADRACE, KAFKA):
        name_suffix, title_suffix = server_suffix(server)
        lines += [
            ClientThroughput(
                f"client-{operation}-{data.name}{name_suffix}",
                f"{title.format(data.title)}{title_suffix}",
                operation,
                data,
                server,
                topic_cache,
            )
            for operation, title in titles.items()
            for data in (SMALL, SMALL_ZSTD)
        ]
    return lines
