"""The benchmark measures what it claims: responses have no errors, and errors are detected. Nothing here is timed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct

import pytest
from bench.broker.produce import Produce
from bench.cluster.lines import cluster_lines
from bench.errors import BenchFailed, CannotRun
from bench.line import Figure, Line, Measurement, Options
from bench.lines import all_lines
from bench.load.frames import make_batch
from bench.load.generator import Load, Span, Target, run_load, target_of
from bench.load.produce import produce_load, run_through
from bench.native.programs import compiler
from bench.runner import Runner, available_systems
from bench.systems.certificate import make_certificate
from bench.systems.clients import MeasuresClients
from bench.systems.requests import end_offset
from bench.systems.servers import CEILING, HEADRACE, Broker, Ceiling, System, spawn_headrace

from headrace.records.batch import CRC_START, HEADER_BYTES, checksum
from headrace.records.compression import Codec

REQUESTS = 40
CRC = Struct(">I")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("bench")
    broker = Broker(HEADRACE, directory / "node", spawn_headrace, make_certificate(directory))
    _ = broker.process  # start it here, so that it belongs to the module
    yield broker
    broker.close()


@pytest.fixture(params=["C", "Python"])
def generator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "C" and compiler() is None:
        pytest.skip("no C compiler")
    if request.param == "Python":
        monkeypatch.setattr(
            "bench.load.generator._generator", lambda *, tls: [sys.executable, "-m", "bench.load.fallback"]
        )
    return str(request.param)


def small_options(directory: Path) -> Options:
    return Options(
        seconds=0.2,
        work=directory,
        bytes_max=100_000_000,
        fetch_bytes=20_000_000,
        filler_bytes_max=100_000_000,
        loop_partitions=5,
        connections=20,
        idle_seconds=0.1,
        open_partitions=2,
        open_segments=2,
        open_active_bytes=1_000_000,
        compaction_records=20_000,
        group_members=12,
        group_partitions=20,
        group_deaths=2,
        committed_offsets=2_000,
        cluster_topics=20,
    )


def test_every_line_about_one_server_runs_without_errors(tmp_path: Path) -> None:
    run_lines(tmp_path, [line for line in all_lines().values() if not getattr(line, "on_cluster", False)])
    assert not (tmp_path / "headrace").exists(), "a run deletes its data"


@pytest.mark.timeout(400)
def test_every_line_about_clusters_runs_without_errors(tmp_path: Path) -> None:
    run_lines(tmp_path, cluster_lines())


def run_lines(directory: Path, lines: list[Line]) -> None:
    systems, skipped = available_systems(directory, with_kafka=False)
    messages: list[str] = []
    lines = [line for line in lines if not isinstance(line, MeasuresClients)]
    results = Runner(systems, small_options(directory), 1, messages.append).run(lines)
    assert "Kafka" in skipped
    assert not results.failed
    for line in lines:
        rounds = results.rounds[line.name]
        expected = {HEADRACE} | ({CEILING} & set(line.against) - set(skipped))
        assert rounds.keys() == expected, line.name
        for measured in (one for rounds_of_one in rounds.values() for one in rounds_of_one):
            assert measured.figures.keys() == {figure.key for figure in line.figures}
            assert all(value >= 0 for value in measured.figures.values()), (line.name, measured.figures)
            if "responses" in measured.detail:
                assert measured.detail["responses"] != 0
                assert measured.detail["errors"] == 0


def test_each_request_gets_one_response_and_is_counted(broker: Broker, generator: str) -> None:
    topic = f"counted-{generator}"
    broker.create_topic(topic, 1)
    batch = make_batch(3, 100)
    load = produce_load(topic, [batch] * 4, 1, 2)
    outcome = run_load(load, target_of(broker), Span(30.0, 0.0, REQUESTS * batch.size))
    assert outcome.responses == outcome.all_responses == REQUESTS
    assert outcome.errors == 0
    assert 0 < outcome.p50_us <= outcome.p99_us <= outcome.p999_us <= outcome.max_us
    assert end_offset(broker.connection, topic) == 3 * REQUESTS


def test_idempotent_load_continues_its_sequence_numbers(broker: Broker, generator: str) -> None:
    line = all_lines()["idempotent-16k"]
    assert isinstance(line, Produce)
    topic = f"idempotent-{generator}"
    load = line.prepare(broker, topic, Options())
    run_load(load, target_of(broker), Span(30.0, 0.0, REQUESTS * load.payload_bytes))
    assert end_offset(broker.connection, topic) == line.records * REQUESTS  # duplicates would not be appended


def test_an_error_code_in_a_response_ends_the_run(broker: Broker, generator: str) -> None:
    load = produce_load("there-is-none", [make_batch(1, 100)], 1, 1)
    lenient = Load(**{**vars(load), "response_max": 1000})
    with pytest.raises(BenchFailed, match="an error, the first one 3"):
        run_load(lenient, target_of(broker), Span(30.0, 0.0, load.payload_bytes))


def test_a_response_of_unexpected_size_ends_the_run(broker: Broker, generator: str) -> None:
    topic = f"sized-{generator}"
    broker.create_topic(topic, 1)
    load = produce_load(topic, [make_batch(1, 100)], 1, 1)
    stricter = Load(**{**vars(load), "response_min": load.response_min + 1, "response_max": load.response_max + 1})
    with pytest.raises(BenchFailed, match="bytes; expected"):
        run_load(stricter, target_of(broker), Span(30.0, 0.0, load.payload_bytes))


@needs_compiler
def test_the_ceiling_refuses_a_wrong_checksum(tmp_path: Path) -> None:
    ceiling = Ceiling(tmp_path / "ceiling")
    ceiling.create_topic("t", 1)
    load = produce_load("t", [make_batch(1, 100)], 1, 1)
    frame = bytearray(load.frames[0][0])
    frame[-10] ^= 1
    broken = Load(**{**vars(load), "frames": [[bytes(frame)]]})
    try:
        with pytest.raises(BenchFailed, match="the load generator failed"):
            run_load(broken, Target((ceiling.port,), ()), Span(30.0, 0.0, load.payload_bytes))
    finally:
        ceiling.close()


@needs_compiler
def test_the_ceiling_writes_what_it_acknowledges(tmp_path: Path) -> None:
    ceiling = Ceiling(tmp_path / "ceiling")
    ceiling.create_topic("t", 1)
    batch = make_batch(60, 1024)
    try:
        load = produce_load("t", [batch], 1, 5)
        run_load(load, target_of(ceiling), Span(30.0, 0.0, REQUESTS * batch.size))
        written = (tmp_path / "ceiling" / "0.log").read_bytes()
    finally:
        ceiling.close()
    assert len(written) == REQUESTS * batch.size
    last = written[-batch.size :]
    assert int.from_bytes(last[:8], "big") == (REQUESTS - 1) * 60
    assert last[16:] == batch.data[16:]


@needs_openssl
def test_the_load_generator_uses_tls_and_verifies_the_certificate(
    broker: Broker, generator: str, tmp_path: Path
) -> None:
    topic = f"encrypted-{generator}"
    broker.create_topic(topic, 1)
    batch = make_batch(60, 1024)
    load = produce_load(topic, [batch] * 2, 1, 3)
    outcome = run_through(broker, load, Span(30.0, 0.0, REQUESTS * batch.size), tls=True)
    assert outcome.all_responses == REQUESTS
    assert outcome.tls == "TLSv1.3 TLS_AES_256_GCM_SHA384"
    assert end_offset(broker.connection, topic) == 60 * REQUESTS
    other = make_certificate(tmp_path)
    assert other is not None
    with pytest.raises(BenchFailed, match="the load generator failed"):
        run_load(replace(load, tls=other.public), Target((broker.tls.port,), (broker.pid,)), Span(1.0))


def test_compressed_batches_are_validated(broker: Broker) -> None:
    broker.create_topic("compressed", 1)
    good = make_batch(20, 1024, codec=Codec.ZSTD)
    assert good.size < good.plain_size / 2
    run_load(produce_load("compressed", [good], 1, 1), target_of(broker), Span(30.0, 0.0, 3 * good.plain_size))
    assert end_offset(broker.connection, "compressed") == 60
    garbage = bytearray(good.data)
    garbage[HEADER_BYTES + 20 :] = bytes(len(garbage) - HEADER_BYTES - 20)
    CRC.pack_into(garbage, CRC_START - CRC.size, checksum(garbage, 0, len(garbage)))
    load = produce_load("compressed", [replace(good, data=bytes(garbage))], 1, 1)
    with pytest.raises(BenchFailed):
        run_load(replace(load, response_max=1000), target_of(broker), Span(30.0, 0.0, good.plain_size))
    assert end_offset(broker.connection, "compressed") == 60


def test_a_failed_line_does_not_stop_the_others(tmp_path: Path) -> None:
    systems, _ = available_systems(tmp_path, with_kafka=False)
    options = Options(seconds=0.1, work=tmp_path, bytes_max=10_000_000)
    sound = all_lines()["produce-64k"]
    assert isinstance(sound, Produce)
    lines: list[Line] = [
        FailingLine("broken", BenchFailed("no response")),
        FailingLine("elsewhere", CannotRun("no openssl")),
        sound,
    ]
    results = Runner(systems, options, 1, lambda text: None).run(lines)
    assert results.failed == {"broken": "no response"}
    assert results.skipped == {"elsewhere": "no openssl"}
    assert results.rounds.keys() == {"produce-64k"}


@dataclass(frozen=True)
class FailingLine:
    name: str
    problem: BenchFailed
    title: str = ""
    figures: tuple[Figure, ...] = ()
    against: tuple[str, ...] = ()
    alone: bool = True
    warm_rounds: int = 0

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        raise self.problem
