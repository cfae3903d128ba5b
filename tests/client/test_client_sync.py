"""The blocking clients on the embedded node: in threads, after forks, at interpreter exit, under interrupts."""

from __future__ import annotations

import gc
import inspect
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.client import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    CommittedOffset,
    Consumer,
    NewTopic,
    Producer,
    TopicPartition,
)
from headrace.client.consumer.decoding import ConsumerRecord
from headrace.client.producer.producer import ProducerClosed
from headrace.client.producer.transaction_requests import AbortableTransactionError
from headrace.client.producer.transaction_session import TransactionSession, TransactionState
from headrace.client.sync.background import background
from headrace.client.sync.producer import HANDED_MAX, Transaction
from headrace.client.wire.connection import Disconnected
from headrace.testing.cluster import EmbeddedNode
from headrace.testing.processes import free_port

WAIT_S_MAX = 20.0


@pytest.fixture
def servers(headrace_session_node: EmbeddedNode) -> dict[str, str]:
    return {"bootstrap.servers": headrace_session_node.bootstrap}


@pytest.fixture
def topic(servers: Mapping[str, str]) -> str:
    name = f"f-{uuid.uuid4().hex[:12]}"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name, 2)])
    return name


def kafka_error(failed: Future[Any], timeout_s: float | None = None) -> KafkaError:
    error = failed.exception(timeout_s)
    assert isinstance(error, KafkaError)
    return error


def reading(servers: Mapping[str, str], **options: Any) -> Consumer:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return Consumer({**servers, "auto.offset.reset": "earliest", **given})


def poll_until(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + WAIT_S_MAX
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        found += consumer.poll(0.5)
    return found


@pytest.mark.parametrize(
    ("blocking", "asynchronous"),
    [(Producer, AsyncProducer), (Consumer, AsyncConsumer), (Admin, AsyncAdmin), (Transaction, TransactionSession)],
)
def test_blocking_clients_have_the_signatures_of_the_asyncio_clients(
    blocking: type[Any], asynchronous: type[Any]
) -> None:
    inner = {"outbox", "is_implicit", "error", "batch_failed", "check_send", "admits", "close", "start", "block_s"}
    for name, method in inspect.getmembers(asynchronous):
        if name.startswith("_") or (name in inner and not hasattr(blocking, name)):
            continue
        assert hasattr(blocking, name), name
        if inspect.isfunction(method):
            parameters = [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]
            ours = inspect.signature(getattr(blocking, name)).parameters.values()
            assert [(one.name, one.kind, one.default) for one in ours] == parameters, name


def test_records_and_arrow_rows_are_sent_and_consumed(servers: dict[str, str], topic: str) -> None:
    with Producer(servers) as producer:
        futures = [producer.send(topic, b"%d" % n, b"k", headers=[("h", None)]) for n in range(3 * HANDED_MAX)]
        rows = pa.table({"value": pa.array([b"row"] * 1000, pa.binary())})
        ranges = producer.send_batch(topic, rows, partition=1).result(WAIT_S_MAX)
        assert sum(one.rows for one in ranges) == 1000
        producer.flush()
        assert all(future.done() for future in futures)
        assert [future.result().offset for future in futures] == sorted(future.result().offset for future in futures)
        assert producer.metrics()["record-send-total"] == 3 * HANDED_MAX + 1000
        assert producer.partitions_for(topic) == [0, 1]
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with reading(servers, group_id=topic, enable_auto_commit=False) as consumer:
        consumer.assign(both)
        assert len(poll_until(consumer, 3 * HANDED_MAX + 1000)) == 3 * HANDED_MAX + 1000
        assert consumer.positions().keys() == set(both)
        consumer.commit_async().result(WAIT_S_MAX)
        assert consumer.committed(both) == consumer.positions()
        consumer.seek(both[1], 7)
        [(place, batch)] = consumer.poll_batch(5.0, 10, columns=("offset", "value"))
        assert place == both[1] and batch["offset"].to_pylist() == list(range(7, 17))
        consumer.seek_to_beginning(both)
        assert next(iter(consumer)).offset == 0
        assert consumer.lag(both[1]) is not None and consumer.metrics()["records-consumed-total"] > 0
        assert sum(consumer.end_offsets(both).values()) == 3 * HANDED_MAX + 1000


def test_threads_can_share_a_producer(servers: dict[str, str], topic: str) -> None:
    with Producer(servers) as producer:

        def send() -> None:
            for n in range(2000):
                producer.send(topic, b"%d" % n, partition=0)

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S_MAX)
    with Admin(servers) as admin:
        assert admin.list_offsets({TopicPartition(topic, 0): "latest"})[TopicPartition(topic, 0)].offset == 8000


def test_callbacks_run_in_the_polling_thread_and_may_use_the_consumer(servers: dict[str, str], topic: str) -> None:
    with Producer(servers) as producer:
        producer.send(topic, b"x", partition=0)
    events: list[tuple[str, Any, int]] = []
    with reading(servers, group_id=topic, enable_auto_commit=False) as consumer:

        def revoked(partitions: frozenset[TopicPartition]) -> None:
            consumer.commit()
            events.append(("revoked", threading.current_thread(), len(partitions)))
            with pytest.raises(HeadraceError, match="not inside its callbacks"):
                consumer.poll()

        def assigned(partitions: frozenset[TopicPartition]) -> None:
            events.append(("assigned", threading.current_thread(), consumer.position(min(partitions))))

        consumer.subscribe([topic], on_assigned=assigned, on_revoked=revoked)
        poll_until(consumer, 1)
    here = threading.current_thread()
    assert events[0] == ("assigned", here, 0) and events[-1] == ("revoked", here, 2)
    with Admin(servers) as admin:
        assert admin.committed_offsets(topic)[TopicPartition(topic, 0)].offset == 1


def test_poll_raises_the_error_of_a_rebalance_callback(servers: dict[str, str], topic: str) -> None:
    def failing(partitions: frozenset[TopicPartition]) -> None:
        raise ValueError("mine")

    with reading(servers, group_id=topic) as consumer:
        consumer.subscribe([topic], on_assigned=failing)
        with pytest.raises(ValueError, match="mine"):
            for _ in range(50):
                consumer.poll(0.2)


def test_transactions_commit_abort_and_fail_when_fenced(servers: dict[str, str], topic: str) -> None:
    options = {**servers, "transactional.id": topic}
    here = TopicPartition(topic, 0)
    with Producer(options) as producer:
        transaction = producer.transaction
        assert transaction.init() is None and transaction.transactional_id == topic
        transaction.begin()
        producer.send(topic, b"no", partition=0)
        transaction.abort()
        transaction.begin()
        sent = producer.send(topic, b"yes", partition=0)
        with reading(servers, group_id=topic, isolation_level="read_committed") as consumer:
            consumer.assign([here])
            transaction.send_offsets({here: CommittedOffset(77)}, consumer.group_metadata())
            transaction.commit()
            assert consumer.committed([here])[here].offset == 77
            consumer.seek_to_beginning([here])
            assert sent.done() and [record.value for record in poll_until(consumer, 1)] == [b"yes"]
        assert transaction.state is TransactionState.READY and transaction.identity.producer_id >= 0
        transaction.begin()
        refused = producer.send(topic, b"x" * 2_000_000)
        with pytest.raises(AbortableTransactionError, match="a record of it was not taken"):
            transaction.commit()
        assert kafka_error(refused).code is ErrorCode.MESSAGE_TOO_LARGE
        transaction.abort()
        with Producer(options) as other:
            other.transaction.init()
            transaction.begin()
            producer.send(topic, b"zombie")
            with pytest.raises(KafkaError):
                transaction.commit()
    with Producer(servers) as producer, pytest.raises(KafkaError, match=r"no transactional\.id"):
        _ = producer.transaction


def test_wrong_types_raise_at_the_call_and_nothing_is_sent(servers: dict[str, str], topic: str) -> None:
    with Producer(servers) as producer:
        with pytest.raises(TypeError, match=r"value must be bytes or None, not str: encode it"):
            producer.send(topic, "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="key must be bytes or None, not int"):
            producer.send(topic, b"x", 5)  # type: ignore[arg-type]
        assert producer.send(topic, b"right").result(WAIT_S_MAX).offset == 0


def test_a_partition_that_does_not_exist_fails_the_future(servers: dict[str, str], topic: str) -> None:
    with Producer(servers) as producer:
        assert (
            kafka_error(producer.send(topic, b"x", partition=9), WAIT_S_MAX).code
            is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    with pytest.raises(ProducerClosed):
        producer.send(topic, b"late")
    producer.close()


def test_max_block_ms_is_not_waited_for_once_per_record(topic: str) -> None:
    begun = time.monotonic()
    with Producer({"bootstrap.servers": f"127.0.0.1:{free_port()}", "max.block.ms": 500}) as producer:
        futures = [producer.send(topic, b"x") for _ in range(100)]
    assert time.monotonic() - begun < WAIT_S_MAX
    assert all(kafka_error(future, 0).code is ErrorCode.REQUEST_TIMED_OUT for future in futures)


def test_closing_a_producer_fails_blocked_and_buffered_sends(topic: str) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{free_port()}"})
    futures: list[Future[Any]] = []
    refused: list[ProducerClosed] = []

    def send() -> None:
        try:
            futures.extend(producer.send(topic, b"x") for _ in range(2 * HANDED_MAX))
        except ProducerClosed as error:
            refused.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    while len(futures) < HANDED_MAX:  # no broker takes the records, so the next send blocks
        time.sleep(0.001)
    producer.close(0.0)
    thread.join(WAIT_S_MAX)
    assert not thread.is_alive() and refused
    assert all(isinstance(future.exception(WAIT_S_MAX), ProducerClosed) for future in futures)


def test_opening_with_an_unreachable_broker_raises_disconnected() -> None:
    unreachable = {"bootstrap.servers": f"127.0.0.1:{free_port()}"}
    for make in (Consumer, Admin):
        with pytest.raises(Disconnected), make(unreachable):
            pass


def test_blocking_calls_in_the_background_thread_raise(servers: dict[str, str]) -> None:
    with Admin(servers) as admin, pytest.raises(HeadraceError, match="cannot wait for itself"):
        background().call(admin.list_topics)


def test_a_keyboard_interrupt_ends_poll_and_the_consumer_stays_usable(servers: dict[str, str], topic: str) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        with reading(servers) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(WAIT_S_MAX)
            with Producer(servers) as producer:
                producer.send(topic, b"after", partition=0)
            assert [record.value for record in poll_until(consumer, 1)] == [b"after"]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_garbage_collected_producer_warns_and_still_delivers(servers: dict[str, str], topic: str) -> None:
    producer = Producer({**servers, "linger.ms": 60_000, "delivery.timeout.ms": 120_000})
    sent = producer.send(topic, b"kept", partition=0)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        del producer
        gc.collect()
    assert any("a Producer was not closed" in str(one.message) for one in caught_warnings)
    assert sent.result(WAIT_S_MAX).partition == 0


def _in_child(servers: Mapping[str, str], topic: str, parent_producer: Any) -> None:
    try:
        parent_producer.send(topic, b"x")
    except HeadraceError as error:
        assert "made by another process" in str(error)
        with Producer(servers) as producer:
            producer.send(topic, b"from the child", partition=0).result(WAIT_S_MAX)
        parent_producer.close()
        sys.exit(0)
    sys.exit(1)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_must_create_its_own_clients(servers: dict[str, str], topic: str) -> None:
    with Producer(servers) as producer:
        producer.send(topic, b"from the parent", partition=0).result(WAIT_S_MAX)
        child = multiprocessing.get_context("fork").Process(target=_in_child, args=(servers, topic, producer))
        child.start()
        child.join(WAIT_S_MAX)
        assert child.exitcode == 0
        producer.send(topic, b"again", partition=0).result(WAIT_S_MAX)


def test_interpreter_exit_delivers_sent_records_and_leaves_the_group(servers: dict[str, str], topic: str) -> None:
    program = f"""
from headrace.client import Consumer, Producer
producer = Producer({{**{servers!r}, "linger.ms": 60000, "compression.type": "zstd", "delivery.timeout.ms": 120000}})
for number in range(5000):
    producer.send({topic!r}, b"%d" % number * 30, partition=0)
consumer = Consumer({{**{servers!r}, "group.id": "left"}})
consumer.subscribe([{topic!r}])
while not consumer.assignment():
    consumer.poll(0.2)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    with Admin(servers) as admin:
        assert admin.list_offsets({TopicPartition(topic, 0): "latest"})[TopicPartition(topic, 0)].offset == 5000
        assert admin.describe_group("left").members == []
