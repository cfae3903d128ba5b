"""The sink on a Headrace node and on real Kafka, without Spark, with a fault at every request of a commit."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from headrace.pipelines.sink import commands
from headrace.pipelines.sink.commands import Batch, TaskTransaction
from headrace.pipelines.sink.commits import Fate

pa = pytest.importorskip("pyarrow")

from testkit.kafka_peer import KafkaPeer, require_kafka  # noqa: E402
from tests.pipelines.sink_runs import PARTITIONS, Crash, Spark, expected, requests, set_transaction_version, visible  # noqa: E402
from tests.pipelines.topic_writer import TopicWriter  # noqa: E402

from headrace.base.errors import HeadraceError  # noqa: E402
from headrace.pipelines.sink import commits as sink  # noqa: E402
from headrace.pipelines.sink.task_writer import Task, write_task  # noqa: E402
from headrace.testing.cluster import EmbeddedNode  # noqa: E402

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
REQUESTS_MIN, REQUESTS_MAX = 10, 60  # number of requests of a commit
TIMEOUT_S_MAX = 20.0


@pytest.fixture(scope="module")
def headrace_bootstrap() -> Iterator[str]:
    with EmbeddedNode({"log.retention.ms": "-1", **SETTINGS}) as node:
        yield node.bootstrap


@pytest.fixture(scope="module")
def kafka_bootstrap() -> Iterator[Any]:
    require_kafka()
    with KafkaPeer(SETTINGS) as peer:
        yield peer.bootstrap


@pytest.fixture(scope="module")
def older_headrace_bootstrap() -> Iterator[str]:
    with EmbeddedNode({"log.retention.ms": "-1", **SETTINGS}) as node:
        set_transaction_version(node.bootstrap, 1)
        yield node.bootstrap


@pytest.fixture(scope="module")
def older_kafka_bootstrap() -> Iterator[Any]:
    require_kafka()
    with KafkaPeer(SETTINGS) as peer:
        set_transaction_version(peer.bootstrap, 1)
        yield peer.bootstrap


on_kafka = (pytest.mark.java, pytest.mark.long)


@pytest.fixture(params=["headrace", pytest.param("kafka", marks=on_kafka)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_bootstrap")


both_transaction_versions = pytest.mark.parametrize(
    "bootstrap",
    ["headrace", "older_headrace", *(pytest.param(name, marks=on_kafka) for name in ("kafka", "older_kafka"))],
    indirect=True,
)


@pytest.fixture
def topic(bootstrap: str, request: pytest.FixtureRequest) -> str:
    name = request.node.name.translate(str.maketrans("[]", "--"))
    return TopicWriter(bootstrap).create(name, PARTITIONS)


@pytest.fixture
def runs(bootstrap: str, topic: str) -> Callable[..., Any]:
    """Return a function that makes runs of queries; all queries of a test write to the same topic."""

    def make(name: str, run: str, **options: Any) -> Spark:
        return Spark(bootstrap, topic, f"{topic}-{name}", run, **options)

    return make


def rows_of(bootstrap: str, topic: str) -> Counter[Any]:
    """Return the committed rows once no transaction is open: Kafka replies to a commit before it writes the markers."""
    until(lambda: not visible(bootstrap, topic)[1])
    return visible(bootstrap, topic)[0]


@both_transaction_versions
def test_batches_commit_in_order_and_older_runs_are_refused(
    runs: Callable[..., Any], bootstrap: str, topic: str
) -> None:
    run = runs("q", "run1")
    for number in range(3):
        batch = run.batch(number)
        assert visible(bootstrap, topic)[0] == expected(range(number))
        assert run.commit(batch) is True
    assert run.commit(run.of(3, [run.task(3, 0, []).transaction])) is True
    assert rows_of(bootstrap, topic) == expected(range(3))
    again = runs("q", "run2")
    assert again.commit(again.batch(2)) is False
    with pytest.raises(commands.OlderBatch):
        again.commit(again.batch(1))
    again.abort(again.batch(1))
    with pytest.raises(commands.BatchNotDecided):
        batch = again.batch(4)
        again.abort(batch)
        again.commit(batch)
    assert again.commit(again.batch(3)) is True
    late = run.batch(4)
    with pytest.raises(commands.TakenOver):
        run.commit(late)
    run.abort(late)
    again.abort(again.of(4, [again.batch(4).transactions[0], None]), may_be_decided=False)
    assert again.commit(again.batch(4)) is True, "and the second task of the attempt before is fenced"
    assert rows_of(bootstrap, topic) == expected(range(5))


@pytest.mark.parametrize(
    ("bootstrap", "what"),
    [
        ("headrace", "crash"),
        ("headrace", "unheard"),
        ("headrace", "unsent"),
        ("older_headrace", "crash"),
        pytest.param("kafka", "crash", marks=on_kafka),
        pytest.param("kafka", "unheard", marks=on_kafka),
        pytest.param("kafka", "unsent", marks=on_kafka),
        pytest.param("older_kafka", "crash", marks=on_kafka),
    ],
    indirect=["bootstrap"],
)
@pytest.mark.timeout(300)
def test_a_fault_at_any_request_neither_loses_nor_doubles_rows(
    runs: Callable[..., Any], bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The fault hits query n at its nth request; all queries write to the same partitions."""
    wanted = 0
    for at in range(1, REQUESTS_MAX):
        first = runs(f"q{at}", "run1")
        first.commit(first.batch(0))
        batch = first.batch(1)
        with requests(monkeypatch, at, what) as fault:
            try:
                first.commit(batch)
            except Crash:
                assert what == "crash"
        wanted += 1
        second = runs(f"q{at}", "run2")
        second.commit(second.batch(1))
        if not fault.happened:
            break
    assert fault.count > REQUESTS_MIN
    assert not fault.happened
    assert rows_of(bootstrap, topic) == times(expected(range(2)), wanted)


def times(counter: Counter[Any], number: int) -> Counter[Any]:
    return type(counter)({key: count * number for key, count in counter.items()})


@pytest.mark.timeout(300)
def test_a_driver_that_stalls_at_any_request_and_resumes_does_no_harm(
    runs: Callable[..., Any], bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = 0
    for at in range(1, REQUESTS_MAX):
        first, second = (runs(f"q{at}", run) for run in ("run1", "run2"))
        first.commit(first.batch(0))
        batch = first.batch(1)
        with requests(monkeypatch, at, "stall") as fault:

            def zombie(first: Spark = first, batch: Batch = batch) -> None:
                try:
                    first.commit(batch)
                except HeadraceError:
                    first.abort(batch)
                finally:
                    fault.reached.set()

            thread = threading.Thread(target=zombie)
            thread.start()
            fault.reached.wait(30)
            second.commit(second.batch(1))
            half = second.batch(2)
            fault.may_continue.set()
            thread.join(30)
            assert not thread.is_alive()
            try:
                second.commit(half)
            except HeadraceError:
                second.abort(half)
                second.commit(second.batch(2))
        wanted += 1
        if not fault.happened:
            break
    assert not fault.happened
    assert rows_of(bootstrap, topic) == times(expected(range(3)), wanted)


def until(condition: Callable[..., Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S_MAX
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def stop_after_the_decision(run: Spark, batch: Batch, monkeypatch: pytest.MonkeyPatch, ended: int = 0) -> None:
    """Crash the commit after its decision and after `ended` of its transactions have ended."""
    original = sink._end

    def end(fates: Mapping[TaskTransaction, Fate], *, commit: bool) -> Iterator[Any]:
        some = dict(list(fates.items())[:ended])
        if some:
            yield from original(some, commit=commit)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(sink, "_end", end)
        with pytest.raises(Crash):
            run.commit(batch)


@both_transaction_versions
def test_a_batch_that_timed_out_before_it_was_visible_is_written_again(
    runs: Callable[..., Any], bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"kafka.transaction.timeout.ms": "3000"}
    first = runs("q", "run1", **short)
    stop_after_the_decision(first, first.batch(0), monkeypatch)
    until(lambda: not visible(bootstrap, topic)[1])
    second = runs("q", "run2")
    assert second.commit(second.batch(0)) is True
    assert rows_of(bootstrap, topic) == expected(range(1))


@both_transaction_versions
def test_a_torn_batch_raises_until_replay_or_skip_is_chosen(
    runs: Callable[..., Any], bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"kafka.transaction.timeout.ms": "3000"}
    for name in ("q", "r"):
        first = runs(name, "run1", **short)
        stop_after_the_decision(first, first.batch(0), monkeypatch, ended=1)
    until(lambda: not visible(bootstrap, topic)[1])
    for run in ("run2", "run3"):
        second = runs("q", run)
        batch = second.batch(0)
        with pytest.raises(commands.TornBatch, match=r"task 1, 2 rows\) is lost"):
            second.commit(batch)
        second.abort(batch)
    third = runs("q", "run4", onTornBatch="replay")
    assert third.commit(third.batch(0)) is True
    half = expected(range(1), tasks=1)
    assert rows_of(bootstrap, topic) == half + half + expected(range(1))
    other = runs("r", "run2", onTornBatch="skip")
    assert other.commit(other.batch(0)) is False
    other = runs("r", "run3")
    assert other.commit(other.batch(1)) is True
    assert rows_of(bootstrap, topic) == half + half + expected(range(2))


@pytest.mark.parametrize("what", ["crash", "unheard", "unsent"])
@pytest.mark.timeout(300)
def test_a_fault_at_any_request_of_a_single_writer_does_no_harm(
    runs: Callable[..., Any], bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    wanted = 0
    for at in range(1, REQUESTS_MAX):
        first, second = (runs(f"q{at}", run, writers="1") for run in ("run1", "run2"))
        first.commit(first.batch(0, tasks=1))
        batch = first.batch(1, tasks=1)
        with requests(monkeypatch, at, what) as fault:
            try:
                first.commit(batch)
            except Crash:
                assert what == "crash"
        second.commit(second.batch(1, tasks=1))
        wanted += 1
        if not fault.happened:
            break
    assert not fault.happened
    assert rows_of(bootstrap, topic) == times(expected(range(2), tasks=1), wanted)


def test_at_least_once_rows_are_visible_when_the_task_ends(
    runs: Callable[..., Any], bootstrap: str, topic: str
) -> None:
    run = runs("q", "run1", deliveryGuarantee="at-least-once")
    assert run.batch(0).transactions == ()
    assert rows_of(bootstrap, topic) == expected(range(1))


def test_a_failed_task_leaves_no_visible_rows(runs: Callable[..., Any], bootstrap: str, topic: str) -> None:
    run = runs("q", "run1")

    def rows() -> Iterator[Any]:
        yield pa.record_batch({"value": pa.array(["a"])})
        yield pa.record_batch({"value": pa.array(["b"]), "partition": pa.array([99])})

    with pytest.raises(HeadraceError, match="has partitions 0 to 1, not 99"):
        write_task(rows(), run.options, Task(run.name, run.run, 0, 0, 0, 1))
    until(lambda: not visible(bootstrap, topic)[1])
    assert not rows_of(bootstrap, topic)
