"""A driver with a scripted Spark: restarts, ends, stops, and the status that others see."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.fake_engine import FakeEngine, FakeHandle, make_pipeline

from headrace.base.errors import ConfigError
from headrace.base.processes import Process
from headrace.client import Admin, NewTopic, Producer
from headrace.pipelines.definitions.definition import BadRecords, Pipeline
from headrace.pipelines.failures import SourceError
from headrace.pipelines.runner import AlreadyRunning, Driver, SparkLost, dead_letters
from headrace.pipelines.runner import driver as driver_module
from headrace.pipelines.runner.control import ask_status, ask_to_stop
from headrace.pipelines.runner.engine import settings_of
from headrace.pipelines.runner.runs import Runs
from headrace.pipelines.runner.status import metrics_of
from headrace.testing.cluster import EmbeddedNode

SEEN_S_MAX = 10.0


def fast_ticks_ms() -> int:
    """Return the milliseconds of a clock that runs a thousand times too fast, so that back-offs take no time."""
    return time.monotonic_ns() // 1000


@pytest.fixture(autouse=True)
def short_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "LOOK_S", 0.005)


def until(condition: Callable[..., Any]) -> None:
    deadline = time.monotonic() + SEEN_S_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class RecordingDriver(Driver):
    """A driver that keeps what its run ended with: the statuses, or the error."""

    ended: list[Any]


@contextmanager
def running(pipelines: Sequence[Pipeline], engine: FakeEngine, runtime: Path, **more: Any) -> Iterator[RecordingDriver]:
    """Run a driver in another thread; `driver.ended` receives the statuses, or the error."""
    driver = RecordingDriver(pipelines, engine=engine, runtime=runtime, ticks_ms=fast_ticks_ms, **more)
    driver.ended = []

    def run() -> None:
        try:
            driver.ended.append(driver.run())
        except Exception as error:
            driver.ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield driver
    finally:
        driver.stop()
        thread.join(SEEN_S_MAX)
        assert not thread.is_alive()


def states(driver: RecordingDriver) -> dict[str, str]:
    return {one.title: one.state for one in driver.status()}


def test_a_bounded_pipeline_ends_when_its_queries_end(tmp_path: Path) -> None:
    engine = FakeEngine()
    seen: list[int] = []
    pipeline = make_pipeline(sinks=("a", "b"), folder=tmp_path, once=True)
    with running([pipeline], engine, tmp_path, watch=lambda statuses: seen.append(len(statuses))) as driver:
        until(lambda: set(states(driver).values()) == {"running"})
        for title, handle in engine.handles.items():
            engine.progress(handle, rows=7, title=title)
            handle.end()
        until(lambda: driver.ended)
    (statuses,) = driver.ended
    assert [(one.name, one.state, one.rows, one.rows_out, one.batch_ms) for one in statuses] == [
        ("a", "done", 7, 7, 120),
        ("b", "done", 7, 7, 120),
    ]
    assert engine.is_closed and Runs(tmp_path).all() == [] and seen


def test_a_batch_pipeline_is_done_after_its_start(tmp_path: Path) -> None:
    engine = FakeEngine(lambda title, handle: None)
    driver = Driver([make_pipeline(folder=tmp_path, stream=False)], engine=engine, runtime=tmp_path)
    assert [one.state for one in driver.run()] == ["done"]


def test_a_failed_query_is_restarted_and_recovers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.pipelines")
    engine = FakeEngine()
    with running([make_pipeline(sinks=("a", "b"), folder=tmp_path)], engine, tmp_path) as driver:
        until(lambda: set(states(driver).values()) == {"running"})
        engine.handles["shop.a"].fail("SourceError", "there is no topic orders")
        until(lambda: engine.starts.count("shop.a") == 2)
        until(lambda: states(driver)["shop.a"] == "running")
        failing, well = driver.status()
        assert (failing.restarts, failing.error) == (1, "there is no topic orders")
        assert (well.state, well.restarts) == ("running", 0)
        engine.progress(engine.handles["shop.a"], rows=5, end=5, latest=9)
        until(lambda: driver.status()[0].error == "")
        assert (driver.status()[0].rows, driver.status()[0].lag_records) == (5, 4)
    messages = [record.message for record in caplog.records]
    assert "shop.a: there is no topic orders; next try in 1 s" in messages and "shop.a: resumed" in messages


def test_progress_of_an_earlier_start_is_counted_but_does_not_clear_the_error(tmp_path: Path) -> None:
    engine = FakeEngine()
    with running([make_pipeline(folder=tmp_path)], engine, tmp_path) as driver:
        first = engine.started(1)
        until(lambda: states(driver) == {"shop.counts": "running"})
        first.fail("SourceError", "there is no topic orders")
        engine.started(2)
        until(lambda: states(driver) == {"shop.counts": "running"})
        engine.progress(first, rows=3, title="shop.counts")
        engine.progress(first, rows=1000, title="somebody.else")
        until(lambda: driver.status()[0].rows == 3)
        assert driver.status()[0].error
        engine.report(engine.handles["shop.counts"].run_id, "", None)  # the query is idle and healthy
        until(lambda: not driver.status()[0].error)


def test_an_unrecoverable_query_fails_while_the_others_keep_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def on_start(title: str, handle: FakeHandle) -> FakeHandle:
        if title == "shop.bad":
            raise ConfigError("value.format=jsno is none")
        return handle

    engine = FakeEngine(on_start)
    with running([make_pipeline(sinks=("bad", "good"), folder=tmp_path)], engine, tmp_path) as driver:
        until(lambda: states(driver) == {"shop.bad": "failed", "shop.good": "running"})
        (run,) = Runs(tmp_path).all()
        assert ask_status(run)[0].error == "value.format=jsno is none"
    assert engine.starts.count("shop.bad") == 1
    assert [one.state for one in driver.ended[0]] == ["failed", "stopped"]
    assert "shop.bad: given up: value.format=jsno is none" in caplog.text


def test_a_failed_start_is_retried(tmp_path: Path) -> None:
    def on_start(title: str, handle: FakeHandle) -> FakeHandle:
        if len(engine.starts) < 3:
            raise SourceError("kafka.bootstrap.servers: cannot connect to localhost:9092")
        return handle

    engine = FakeEngine(on_start)
    with running([make_pipeline(folder=tmp_path)], engine, tmp_path) as driver:
        engine.started(3)
        until(lambda: states(driver) == {"shop.counts": "running"})


def test_stop_over_http_ends_one_pipeline_and_then_the_driver(tmp_path: Path) -> None:
    engine = FakeEngine()
    first, second = make_pipeline("first", folder=tmp_path), make_pipeline("second", folder=tmp_path)
    with running([first, second], engine, tmp_path) as driver:
        until(lambda: set(states(driver).values()) == {"running"})
        ask_to_stop(Runs(tmp_path).find("first"))
        until(lambda: Runs(tmp_path).find("first") is None)
        assert states(driver) == {"first.counts": "stopped", "second.counts": "running"}
        # Another driver may run the first pipeline now, while this one continues.
        again = FakeEngine()
        with running([first], again, tmp_path) as other:
            until(lambda: states(other) == {"first.counts": "running"})
        ask_to_stop(Runs(tmp_path).find("second"))
        until(lambda: driver.ended)
    assert [one.state for one in driver.ended[0]] == ["stopped", "stopped"]
    assert Runs(tmp_path).all() == [] and engine.is_closed


def test_a_stop_during_a_start_stops_the_started_query(tmp_path: Path) -> None:
    may_start = threading.Event()

    def on_start(title: str, handle: FakeHandle) -> FakeHandle:
        assert may_start.wait(SEEN_S_MAX)
        return handle

    engine = FakeEngine(on_start)
    with running([make_pipeline(folder=tmp_path)], engine, tmp_path) as driver:
        handle = engine.started(1)
        driver.stop()
        until(lambda: states(driver) == {"shop.counts": "stopping"})
        until(lambda: engine.cancelled == ["shop.counts"])
        may_start.set()
        until(lambda: driver.ended)
    assert handle.stops == 1 and driver.ended[0][0].state == "stopped"


def test_a_query_that_does_not_stop_is_abandoned_after_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver_module, "STOP_S_MAX", 0.05)
    monkeypatch.setattr("tests.pipelines.fake_engine.FakeHandle.stop", lambda self: None)
    with running([make_pipeline(folder=tmp_path)], FakeEngine(), tmp_path) as driver:
        until(lambda: states(driver) == {"shop.counts": "running"})
    assert driver.ended[0][0].state == "stopped" and "did not stop within" in caplog.text


def test_a_second_driver_of_a_pipeline_or_checkpoint_is_refused(tmp_path: Path) -> None:
    one = make_pipeline(folder=tmp_path)
    with running([one], FakeEngine(), tmp_path / "here") as driver:
        until(lambda: states(driver) == {"shop.counts": "running"})
        with pytest.raises(AlreadyRunning, match="shop is running already, as process"):
            Driver([one], engine=FakeEngine(), runtime=tmp_path / "here").run()
        second = FakeEngine()
        with pytest.raises(AlreadyRunning, match=r"the checkpoint .* is in use by process"):
            Driver([one], engine=second, runtime=tmp_path / "elsewhere").run()
        assert second.starts == [] and Runs(tmp_path / "elsewhere").all() == []
        assert states(driver) == {"shop.counts": "running"}
    Driver([make_pipeline(folder=tmp_path, stream=False)], engine=FakeEngine(lambda *_: None), runtime=tmp_path).run()


def test_the_driver_raises_spark_lost_when_the_spark_process_is_gone(tmp_path: Path) -> None:
    engine = FakeEngine()
    with running([make_pipeline(folder=tmp_path)], engine, tmp_path) as driver:
        until(lambda: states(driver) == {"shop.counts": "running"})
        engine.process = Process(2**22 + 7, "long ago")
        until(lambda: driver.ended)
    assert isinstance(driver.ended[0], SparkLost) and "resumes from its checkpoints" in str(driver.ended[0])
    assert Runs(tmp_path).all() == []


def test_an_unreachable_spark_counts_as_a_failure_of_the_query(tmp_path: Path) -> None:
    def is_active() -> None:
        raise ConnectionError("no answer")

    def on_start(title: str, handle: FakeHandle) -> FakeHandle:
        if len(engine.starts) == 1:
            handle.is_active = is_active
        return handle

    engine = FakeEngine(on_start)
    with running([make_pipeline(folder=tmp_path)], engine, tmp_path) as driver:
        engine.started(2)
        until(lambda: states(driver) == {"shop.counts": "running"})


def test_pipelines_of_one_driver_must_agree_on_spark_settings(tmp_path: Path) -> None:
    one = make_pipeline(
        "one", folder=tmp_path, spark={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    )
    two = make_pipeline(
        "two", folder=tmp_path, spark={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "3"}
    )
    master, conf = settings_of([one, two])
    assert (master, conf["spark.driver.memory"]) == ("local[1]", "1g")
    with pytest.raises(ConfigError, match=r"spark.driver.memory is 1g for pipeline one and 2g for three"):
        settings_of([one, make_pipeline("three", folder=tmp_path, spark={"spark.driver.memory": "2g"})])
    with pytest.raises(ConfigError, match=r"spark[.]master is"):
        settings_of([one, make_pipeline("three", folder=tmp_path, master="spark://there:7077")])
    with pytest.raises(ConfigError, match="no pipeline"):
        Driver([], runtime=tmp_path)


def test_dead_letters_are_counted_from_the_start_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "COUNT_EVERY_S", 0.005)
    engine = FakeEngine()
    engine.dead_letter_count = 5  # from an earlier run
    made = make_pipeline(folder=tmp_path, sinks=("a", "b"), bad=BadRecords("deadletter", "orders-bad"))
    with running([made], engine, tmp_path) as driver:
        until(lambda: set(states(driver).values()) == {"running"})
        assert [one.dead_letters for one in driver.status()] == [0, None]  # the first query counts them for both
        engine.dead_letter_count = 8
        until(lambda: driver.status()[0].dead_letters == 3)
        assert "headrace_pipeline_dead_letters_total" in {family.name for family in metrics_of(driver.status())}
        engine.dead_letter_count = 9
    (statuses,) = driver.ended
    assert statuses[0].dead_letters == 4, "the last ones count, too"


def test_dead_letters_are_counted_from_the_log_ends_of_their_topic(tmp_path: Path, headrace_node: EmbeddedNode) -> None:
    made = make_pipeline(folder=tmp_path, bad=BadRecords("deadletter", "orders-bad"))
    made.settings["kafka.bootstrap.servers"] = headrace_node.bootstrap  # type: ignore[index]
    sink = made.sinks["counts"]
    assert dead_letters.count_records(made, sink) == 0  # the topic does not exist yet
    with Admin({"bootstrap.servers": headrace_node.bootstrap}) as admin:
        admin.create_topics([NewTopic("orders-bad", 2, 1)])
    with Producer({"bootstrap.servers": headrace_node.bootstrap}) as producer:
        for number in range(7):
            producer.send("orders-bad", b"junk", partition=number % 2)
    assert dead_letters.count_records(made, sink) == 7
