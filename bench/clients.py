"""Client libraries reading and writing Arrow rows, against Python's most widely used client, on the same server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec

from bench.client_program import Done, Work
from bench.contestants import HEADRACE, KAFKA, Broker, Contestant
from bench.data_sets import PARTITIONS, SMALL, SMALL_ZSTD, DataSet, Shelf, end_of
from bench.line import Figure, Line, Measured, Options
from bench.measured_clients import CONFLUENT, MeasuredClient, server_named, server_suffix
from bench.native import ROOT
from bench.wire import BenchFailed, CannotRun
from headrace.testing.processes import LOOPBACK

SLACK_S = 60.0  # time beyond that of the work itself before a program counts as hung
GOAL = 5.0
FIGURES = (
    Figure("rows_per_s", "rows/s", True, goal=GOAL),
    Figure("cpu_ns_per_row", "the client's CPU, ns/row", False),
)
_PROGRAMS = {HEADRACE: "headrace", CONFLUENT: "confluent"}


@dataclass(frozen=True)
class ClientWork:
    name: str
    title: str
    doing: str
    data: DataSet
    server: str
    shelf: Shelf = field(repr=False)
    figures: tuple[Figure, ...] = FIGURES
    against: tuple[str, ...] = (CONFLUENT,)
    alone: bool = False
    warm_rounds: int = 1

    def measured_clients(self, servers: Mapping[str, Broker]) -> list[Contestant]:
        for name, package in ((HEADRACE, "pyarrow"), (CONFLUENT, "confluent_kafka")):
            if find_spec(package) is None:
                raise CannotRun(f"{name}: {package} is not installed")
        return [MeasuredClient(name, server_named(servers, self.server)) for name in _PROGRAMS]

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        assert isinstance(contestant, MeasuredClient)
        if self.doing == "produce":
            return self._produce(contestant, topic, options)
        records = self.data.whole(options.records)
        filled = self.shelf.topic(contestant.server, self.data, records)
        return _measured(self._run(contestant, filled, records, options))

    def _produce(self, measured_client: MeasuredClient, topic: str, options: Options) -> Measured:
        self.shelf.clear()
        records = options.records
        if options.bytes_max:
            records = min(records, options.bytes_max // self.data.value_bytes // 2)  # the warm-up writes too
        measured_client.open_topic(topic, PARTITIONS)
        try:
            done = self._run(measured_client, topic, records, options)
            found = end_of(measured_client.server, topic)
        finally:
            measured_client.drop_topic(topic)
        if found != done.all_rows:
            raise BenchFailed(f"{measured_client.name} sent {done.all_rows} rows, of which {found} are there")
        return _measured(done)

    def _run(self, measured_client: MeasuredClient, topic: str, records: int, options: Options) -> Done:
        work = Work(
            client=_PROGRAMS[measured_client.name],
            doing=self.doing,
            bootstrap=f"{LOOPBACK}:{measured_client.port}",
            topic=topic,
            partitions=PARTITIONS,
            value_bytes=self.data.value_bytes,
            codec=self.data.codec.name.lower(),
            records=records,
            seconds=options.span.seconds,
            warm_seconds=options.span.warm,
        )
        return run_client(work)


def run_client(work: Work) -> Done:
    """Run the client program in a process. Raise BenchFailed with its stderr if it fails or counts no rows."""
    command = [sys.executable, "-m", "bench.client_program", json.dumps(asdict(work))]
    timeout_s = work.seconds + work.warm_seconds + SLACK_S
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{work.client} could not {work.doing} within {timeout_s:.0f} s") from None
    if ended.returncode != 0:
        raise BenchFailed(f"{work.client} could not {work.doing}: {ended.stderr.strip()[-1000:]}")
    done = Done(**json.loads(ended.stdout))
    if not done.rows:
        raise BenchFailed(f"{work.client}: nothing was left after the warm-up to {work.doing}")
    return done


def _measured(done: Done) -> Measured:
    return Measured(
        {"rows_per_s": done.rows / done.seconds, "cpu_ns_per_row": done.cpu_s / done.rows * 1e9}, asdict(done)
    )


def client_lines() -> list[Line]:
    shelf = Shelf()
    what = {"produce": "Arrow rows of {} into a topic", "consume": "a topic into Arrow rows of {}"}
    lines: list[Line] = []
    for server in (HEADRACE, KAFKA):
        name_suffix, title_suffix = server_suffix(server)
        lines += [
            ClientWork(
                f"client-{doing}-{data.name}{name_suffix}",
                f"{title.format(data.title)}{title_suffix}",
                doing,
                data,
                server,
                shelf,
            )
            for doing, title in what.items()
            for data in (SMALL, SMALL_ZSTD)
        ]
    return lines
