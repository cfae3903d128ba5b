"""Benchmark lines that compare clients: they transfer what they count, and report errors. Nothing here is timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from bench.client.lines import ClientThroughput, run_client
from bench.client.program import ClientJob
from bench.errors import BenchFailed
from bench.line import Figure, Measurement, Options
from bench.lines import CLIENT, SPARK, all_lines, chapters
from bench.load.data_sets import LARGE, PARTITIONS, SMALL_ZSTD, DataSet, TopicCache, fill, total_end_offset
from bench.report import make_rows
from bench.runner import Results, Runner
from bench.spark.lines import SparkJob
from bench.systems.clients import CONFLUENT, CONNECTOR, MeasuredClient
from bench.systems.requests import has_leaders
from bench.systems.servers import HEADRACE, KAFKA, Broker, System, spawn_headrace

from headrace.records.compression import Codec

TINY = DataSet(100, 10, Codec.NONE)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(HEADRACE, tmp_path_factory.mktemp("bench") / "node", spawn_headrace)
    _ = broker.process  # start it here, so that it belongs to the module
    yield broker
    broker.close()


@pytest.mark.parametrize("client", ["headrace", "confluent"])
def test_a_client_produces_and_consumes_the_records_it_counts(broker: Broker, client: str) -> None:
    topic = f"by-{client}"
    broker.create_topic(topic, PARTITIONS)
    job = ClientJob(client, "produce", f"127.0.0.1:{broker.port}", topic, PARTITIONS, 100, "zstd", 3000, 60.0, 60.0)
    wrote = run_client(job)
    assert (wrote.rows, wrote.all_rows) == (3000, 6000)
    assert total_end_offset(broker, topic) == 6000
    read = run_client(replace(job, operation="consume", records=6000))
    assert 0 < read.rows <= read.all_rows == 6000
    assert read.seconds > 0 and read.cpu_s > 0


def test_a_client_failure_is_reported_with_its_reason(broker: Broker) -> None:
    topic = "too-short"
    fill(broker, topic, TINY, TINY.whole_batches(80))
    job = ClientJob("headrace", "elsewhere", f"127.0.0.1:{broker.port}", topic, PARTITIONS, 100, "none", 80, 1.0, 0.0)
    with pytest.raises(BenchFailed, match="could not elsewhere"):
        run_client(job)


def test_a_new_data_set_replaces_the_filled_topic(broker: Broker) -> None:
    topic_cache = TopicCache()
    small, large = (topic_cache.filled_topic(broker, data, data.whole_batches(1)) for data in (TINY, LARGE))
    assert not has_leaders(broker.connection, small)
    assert total_end_offset(broker, large) == LARGE.batch_records * PARTITIONS
    assert topic_cache.filled_topic(broker, LARGE, LARGE.whole_batches(1)) == large
    topic_cache.clear()
    assert not has_leaders(broker.connection, large)
    with pytest.raises(BenchFailed, match="not whole batches"):
        fill(broker, "odd", TINY, 7)


def test_client_lines_measure_every_client_in_each_round(tmp_path: Path, broker: Broker) -> None:
    lines = [replace(line, warm_rounds=0) for line in chapters()[CLIENT] if isinstance(line, ClientThroughput)]
    options = Options(seconds=0.1, work=tmp_path, bytes_max=400_000, records=4_000)
    runner = Runner([SharedBroker(broker)], options, 1, lambda text: None)
    results = runner.run([line for line in lines if line.server == HEADRACE and line.data == SMALL_ZSTD])
    assert not results.failed
    assert len(results.rounds) == 2
    for rounds in results.rounds.values():
        assert {name: len(measured) for name, measured in rounds.items()} == {HEADRACE: 1, CONFLUENT: 1}


def test_lines_for_a_server_that_is_not_available_are_skipped(tmp_path: Path, broker: Broker) -> None:
    lines = [
        line for chapter in (CLIENT, SPARK) for line in chapters()[chapter] if getattr(line, "server", "") == KAFKA
    ]
    assert len(lines) == 4 + 24
    results = Runner([SharedBroker(broker)], Options(work=tmp_path), 1, lambda text: None).run(lines)
    assert not results.rounds
    assert set(results.skipped.values()) == {"Kafka is not available"}


def test_report_rows_compare_against_the_connector_by_name() -> None:
    line = all_lines()["spark-sink-1k-zstd"]
    assert isinstance(line, SparkJob)
    found = Results()
    for name, speed in ((HEADRACE, 130.0), (CONNECTOR, 100.0)):
        found.add(line.name, name, Measurement({"rows_per_s": speed, "cpu_us_per_row": 1.0}))
    rows = make_rows([line], found)
    assert [(row.against, row.figure.key, row.ratio, row.met) for row in rows] == [
        (CONNECTOR, "rows_per_s", 1.3, True),
        (CONNECTOR, "cpu_us_per_row", 1.0, None),
    ]


def test_client_lines_and_data_sets_have_the_expected_names_and_sizes() -> None:
    assert [
        line.name for line in chapters()[CLIENT] if isinstance(line, ClientThroughput) and line.data == SMALL_ZSTD
    ] == [
        "client-produce-100b-zstd",
        "client-consume-100b-zstd",
        "client-produce-100b-zstd-kafka",
        "client-consume-100b-zstd-kafka",
    ]
    assert (
        LARGE.name == "1k"
        and LARGE.whole_batches(1_000_000) == 1_000_000
        and SMALL_ZSTD.whole_batches(10_000_000) == 10_000_000
    )


def test_resources_owned_by_a_client_are_closed_once_after_the_last_round(tmp_path: Path, broker: Broker) -> None:
    line = LineWithResource()
    results = Runner([SharedBroker(broker)], Options(work=tmp_path), 2, lambda text: None).run([line])
    assert [one.figures for one in results.rounds["visited"][HEADRACE]] == [{"s": 1.0}, {"s": 1.0}]
    assert line.owned.closed == 1


class SharedBroker(Broker):
    """The fixture's broker without its close, as other tests use it too."""

    def __init__(self, broker: Broker) -> None:
        _ = broker.process  # start it if necessary
        self.__dict__.update(broker.__dict__)

    def close(self) -> None: ...


class ClosableResource:
    closed = 0

    def close(self) -> None:
        self.closed += 1


@dataclass(frozen=True)
class LineWithResource:
    name: str = "visited"
    title: str = ""
    figures: tuple[Figure, ...] = (Figure("s", "s", False),)
    against: tuple[str, ...] = ()
    alone: bool = False
    warm_rounds: int = 0
    owned: ClosableResource = field(default_factory=ClosableResource)

    def measured_clients(self, servers: Mapping[str, Broker]) -> list[System]:
        return [MeasuredClient(HEADRACE, servers[HEADRACE], self.owned)]

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert self.owned.closed == 0
        return Measurement({"s": 1.0})
