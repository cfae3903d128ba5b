"""The pipelines chapter without Spark: expected results, matching, counts, the generator, and the demo's runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bench.errors import BenchFailed
from bench.line import Options
from bench.lines import PIPELINES, chapters
from bench.pipelines.demo import DemoMeasurement, DemoMemory, DemoRuns, FirstResult
from bench.pipelines.latency import arrivals, latencies, order_times, percentile
from bench.pipelines.lines import PipelineLatency, PipelineRows
from bench.pipelines.program import ShopJob, shop_pipeline
from bench.pipelines.shop_topics import Generator, ShopTopics, check_results, check_rows, expected_rows, result_topics
from bench.pipelines.topic_reader import TopicReader
from bench.runner import Runner
from bench.systems.clients import CONNECTOR_AT_KAFKA
from bench.systems.requests import has_leaders
from bench.systems.servers import HEADRACE, Broker, spawn_headrace

from headrace.demo.results.expected import EnrichedOrder, PageViews, Session
from headrace.demo.shop.events import PARTITIONS, Order, clicks_among, order, orders_among
from headrace.demo.shop.topics import CLICKS, ORDERS

EVENTS = 1000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(HEADRACE, tmp_path_factory.mktemp("bench") / "node", spawn_headrace)
    _ = broker.process  # start it here, so that it belongs to the module
    yield broker
    broker.close()


# --- figures


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (50.0, 99.0, 100.0)
    assert percentile([7.0], 0.5) == percentile([7.0], 0.99) == 7.0


def test_latency_covers_only_orders_created_after_the_warm_up() -> None:
    created = {1: 1000.0, 2: 1999.0, 3: 2000.0, 4: 3000.0}
    arrived = {1: 9000.0, 2: 9000.0, 3: 2750.0, 4: 3250.0}
    assert latencies(created, arrived, 1000.0) == [750.0, 250.0]


@pytest.mark.parametrize(
    ("arrived", "message_pattern"),
    [({1: 5.0}, "1 of 2 orders have no result, such as \\[2\\]"), ({1: 5.0, 2: 6.0}, "after the warm-up")],
)
def test_latency_fails_if_orders_are_missing_or_all_precede_the_end_of_the_warm_up(
    arrived: dict[int, float], message_pattern: str
) -> None:
    with pytest.raises(BenchFailed, match=message_pattern):
        latencies({1: 0.0, 2: 1.0}, arrived, 1000.0)


def test_expected_results_account_for_every_event() -> None:
    expected = expected_rows(EVENTS)
    assert sum(row.clicks for row in expected["page_views"] if isinstance(row, PageViews)) == clicks_among(EVENTS)
    assert sum(row.clicks for row in expected["sessions"] if isinstance(row, Session)) == clicks_among(EVENTS)
    assert expected["enriched_orders"].total() == orders_among(EVENTS)


def test_lost_duplicate_or_unexpected_rows_fail_the_round() -> None:
    expected = expected_rows(EVENTS)
    found = {name: Counter(rows) for name, rows in expected.items()}
    assert check_rows("somebody", expected, found) == {name: rows.total() for name, rows in expected.items()}
    first = next(iter(found["enriched_orders"]))
    assert isinstance(first, EnrichedOrder)
    found["enriched_orders"][first] = 2
    with pytest.raises(BenchFailed, match=r"somebody: 101 enriched_orders instead of 100: 0 lost, 0 not expected, 1 t"):
        check_rows("somebody", expected, found)
    found["enriched_orders"][first] = 0
    found["enriched_orders"] += Counter([first._replace(cents=0)])
    with pytest.raises(BenchFailed, match="1 lost, 1 not expected, 0 twice"):
        check_rows("somebody", expected, found)


def test_shop_events_are_a_twenty_fifth_of_the_records_and_at_least_1000() -> None:
    assert Options().shop_events == 400_000
    assert Options(records=80_000).shop_events == 3000
    assert Options(records=1).shop_events == 1000


# --- lines


def test_pipeline_lines_declare_their_baselines_and_goals() -> None:
    rows, latency, first, memory = chapters()[PIPELINES]
    assert isinstance(rows, PipelineRows) and isinstance(latency, PipelineLatency)
    assert isinstance(first, FirstResult) and isinstance(memory, DemoMemory)
    assert rows.against == latency.against == (CONNECTOR_AT_KAFKA,)
    goals = [
        (figure.key, figure.goal, figure.goal_absolute) for line in chapters()[PIPELINES] for figure in line.figures
    ]
    assert goals == [
        ("rows_per_s", 1.0, None),
        ("cpu_us_per_row", None, None),
        ("p50_ms", 1.0, None),
        ("p99_ms", 1.0, None),
        ("server_mb", None, None),
        ("first_result_s", None, 90.0),
        ("small_mb", None, 200.0),
        ("all_mb", None, None),
    ]


def test_pipeline_lines_are_skipped_without_kafka_or_the_connector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("spark_missing", "connector_missing", "reader_missing"):
        monkeypatch.setattr(f"bench.pipelines.lines.{name}", lambda: None)
    broker = Broker(HEADRACE, tmp_path / "node", spawn_headrace)
    lines = chapters()[PIPELINES][:2]
    results = Runner([broker], Options(work=tmp_path), 1, lambda text: None).run(lines)
    assert results.skipped == dict.fromkeys(("pipeline-rows", "pipeline-latency"), "Kafka is not available")
    monkeypatch.setattr("bench.pipelines.lines.connector_missing", lambda: "no Maven")
    results = Runner([broker], Options(work=tmp_path), 1, lambda text: None).run(lines)
    assert set(results.skipped.values()) == {"no Maven"}


class CountingRuns(DemoRuns):
    def __init__(self) -> None:
        super().__init__()
        self.run_count = 0

    def run(self, options: Options) -> DemoMeasurement:
        self.run_count += 1
        measurement = DemoMeasurement(30.0 + self.run_count, 150_000_000, 2_000_000_000, 8)
        self._kept.append(measurement)
        return measurement


def test_both_demo_lines_report_the_same_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("spark_missing", "reader_missing"):
        monkeypatch.setattr(f"bench.pipelines.demo.{name}", lambda: None)
    runs = CountingRuns()
    broker = Broker(HEADRACE, tmp_path / "node", spawn_headrace)
    runner = Runner([broker], Options(work=tmp_path), 2, lambda text: None)
    results = runner.run([FirstResult(runs), DemoMemory(runs)])
    firsts = results.rounds["pipeline-first-result"][HEADRACE]
    assert [one.figures["first_result_s"] for one in firsts] == [31.0, 32.0]
    memory = results.rounds["pipeline-memory"][HEADRACE]
    assert [one.figures for one in memory] == [{"small_mb": 150.0, "all_mb": 2000.0}] * 2
    assert runs.run_count == 2
    assert DemoMemory(runs).measure(broker, "", Options()).figures["small_mb"] == 150.0
    assert runs.run_count == 3
    assert not broker.is_running


# --- the shop on a node


def test_shop_topics_are_filled_once_and_deleted_on_clear(broker: Broker, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("confluent_kafka")
    shop_topics = ShopTopics()
    shop_topics.fill(broker, EVENTS, tmp_path)
    with TopicReader(broker.port, CLICKS, ORDERS, partitions=PARTITIONS) as reader:
        topics = Counter(message.topic() for message in reader.read_to_the_end())
    assert topics == {CLICKS: clicks_among(EVENTS) + PARTITIONS, ORDERS: orders_among(EVENTS)}  # with a bell in each
    shop_topics.fill(broker, EVENTS, tmp_path)
    created = order_times(broker.port)
    assert created.keys() == set(range(orders_among(EVENTS)))
    shop_topics.create_empty(broker)
    assert order_times(broker.port) == {}
    shop_topics.clear()
    assert not has_leaders(broker.connection, ORDERS)


def test_result_topics_are_read_checked_and_deleted(broker: Broker) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    with result_topics(broker, "-some") as topics:
        producer = confluent.Producer({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
        for row in expected_rows(EVENTS)["enriched_orders"]:
            assert isinstance(row, EnrichedOrder)
            producer.produce(topics["enriched_orders"], _enriched(row))
        producer.flush(60)
        with TopicReader(broker.port, topics["enriched_orders"], partitions=PARTITIONS) as reader:
            found = arrivals(reader, orders_among(EVENTS), 60.0)
        assert found.keys() == set(range(orders_among(EVENTS)))
        with pytest.raises(BenchFailed, match="somebody: 0 page_views instead of"):
            check_results("somebody", broker, topics, EVENTS)
    assert not has_leaders(broker.connection, topics["sessions"])


def _enriched(row: EnrichedOrder) -> bytes:
    ordered = order(row.id, [EVENTS])
    assert ordered == Order(row.id, row.customer, row.product, row.cents, row.at_ms)
    return ordered.value[:-1] + f',"name":"{row.name}","city":"{row.city}"}}'.encode()


def test_a_failed_generator_is_reported_with_its_exit_code_and_output(broker: Broker, tmp_path: Path) -> None:
    generator = Generator(broker, tmp_path, events=-1)
    generator._command[-1] = "many"
    with generator, pytest.raises(BenchFailed, match=r"(?s)ended with code 2: .*invalid int value"):
        generator.finish(60.0)


def test_the_benchmark_pipeline_is_the_demo_with_suffixed_result_topics() -> None:
    pytest.importorskip("pyspark")
    job = ShopJob("start", "localhost:1", "/nowhere", "-some")
    pipeline = shop_pipeline(job, {"trigger": "available-now"})
    assert pipeline.settings["kafka.bootstrap.servers"] == "localhost:1"
    assert [sink.target for sink in pipeline.sinks.values()] == [
        "shop-page-views-some",
        "shop-sessions-some",
        "shop-enriched-orders-some",
    ]
    assert str(pipeline.trigger) == "available-now"
    assert str(shop_pipeline(replace(job, suffix=""), {}).trigger) == "1 second"
