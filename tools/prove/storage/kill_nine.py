"""Repeated kill -9 of a node under load, with a history of every response to its clients.

One thread polls producers and a reader in turn, so the history has a total order. A killed process loses nothing that
it has written to the kernel: acknowledged records must be there, once, at their offsets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Any

from testkit.history import FinalRead, History, check

from headrace.base.errors import ErrorCode
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.testing.processes import LOOPBACK, NodeProcess, ProcessFailed

TOPICS = ("once-a", "once-b", "plain")
PARTITIONS = 3
PRODUCER_IDS_PER_ROUND = 3
LOAD_S = (0.1, 0.9)
EARLY_KILL_PROBABILITY = 0.2  # share of rounds in which the next start is killed too, during recovery
EARLY_KILL_S = (0.05, 0.6)
ACKNOWLEDGED_S_MAX = 10.0
BURST = 40
KEY_BYTES_MAX = 1200
OPEN_SENDS_MAX = 3000
DELIVERY_S_MAX = 60.0
READ_S_MAX = 60.0
SETTINGS = {
    "num.partitions": str(PARTITIONS),
    "log.segment.bytes": "1048576",  # rolls often
    "log.index.interval.bytes": "1024",
    "log.flush.offset.checkpoint.interval.ms": "300",  # short enough for recovery points to move between two kills
}
PRODUCER = {
    "acks": "all",
    "linger.ms": 2,
    "batch.num.messages": 50,
    "message.timeout.ms": 120_000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    # Otherwise a client that has lost its only broker would bootstrap again, once a second, which is longer than some
    # nodes live.
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}


class LoadProducer:
    """Sends unique values to all partitions of its topic and records the outcome of each."""

    def __init__(self, name: str, topic: str, bootstrap: str, history: History, *, idempotent: bool) -> None:
        from confluent_kafka import Producer

        self.name = name
        self._topic = topic
        self._history = history
        self._once = idempotent
        self._sent = 0
        self.open = 0
        self.acknowledged = 0
        self.unknown = 0
        # Without idempotence a retry may be written twice or reordered; one request at a time at least keeps the order.
        in_flight = {"enable.idempotence": True} if idempotent else {"max.in.flight": 1}
        self.producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER, **in_flight})

    def send(self, count: int, random: Random) -> None:
        for _ in range(count):
            if self.open >= OPEN_SENDS_MAX:
                break
            partition = random.randrange(PARTITIONS)
            value = f"{self.name}-{self._sent}"
            self._sent += 1
            call = self._history.invoke(
                f"{self.name}/{partition}",
                "send",
                topic=self._topic,
                partition=partition,
                values=[value],
                once=self._once,
            )
            self.open += 1
            self.producer.produce(
                self._topic,
                value.encode(),
                random.randbytes(random.randrange(KEY_BYTES_MAX)),
                partition=partition,
                on_delivery=self._delivered(call),
            )

    def _delivered(self, call: int) -> Callable[[Any, Any], None]:
        def delivered(error: Any, message: Any) -> None:
            self.open -= 1
            if error is None:
                self.acknowledged += 1
                offset = message.offset()
                self._history.ok(call, offset=offset if offset is not None and offset >= 0 else None)
            else:
                self.unknown += 1
                self._history.info(call, error=str(error))

        return delivered


class Reader:
    """Follows all partitions from the beginning, across broken connections."""

    def __init__(self, name: str, bootstrap: str, history: History) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._name = name
        self._history = history
        self.wrong: list[str] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )
        self.consumer.assign([TopicPartition(topic, index, 0) for topic in TOPICS for index in range(PARTITIONS)])

    def poll(self, count: int = 500, wait_s: float = 0.0) -> int:
        found: dict[tuple[str, int], list[tuple[int, str]]] = {}
        messages = self.consumer.consume(count, wait_s)
        for message in messages:
            error = message.error()
            if error is None:
                place, record = _record(message)
                found.setdefault(place, []).append(record)
            elif error.name() in ("_BAD_MSG", "OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "CORRUPT_MESSAGE"):
                self.wrong.append(f"{self._name}: {error}")
        for (topic, partition), records in found.items():
            call = self._history.invoke(self._name, "poll", topic=topic, partition=partition, position=None)
            self._history.ok(call, records=records)
        return len(messages)


def _record(message: Any) -> tuple[tuple[str, int], tuple[int, str]]:
    return (message.topic(), message.partition()), (message.offset(), message.value().decode())


def rounds_of_killing(rounds: int, seed: int, print_progress: Callable[[str], None] = lambda text: None) -> str:
    """Run the rounds and return a summary. Raise AssertionError with the anomalies found."""
    random = Random(seed)
    history = History(time.monotonic)
    early = 0
    with NodeProcess(SETTINGS) as node:
        producers = [
            LoadProducer("p1", TOPICS[0], node.bootstrap, history, idempotent=True),
            LoadProducer("p2", TOPICS[1], node.bootstrap, history, idempotent=True),
            LoadProducer("p3", TOPICS[2], node.bootstrap, history, idempotent=False),
        ]
        _create_topics(node.port)
        reader = Reader("reader", node.bootstrap, history)
        try:
            for number in range(rounds):
                _request_producer_ids(node.port, history, number)
                _load(producers, reader, random, random.uniform(*LOAD_S), until_acknowledged=True)
                node.kill()
                if random.random() < EARLY_KILL_PROBABILITY:
                    early += _kill_during_start(node, random.uniform(*EARLY_KILL_S))
                _load(producers, reader, random, 0.02, until_acknowledged=False)  # while the node is down
                if not node.is_running:
                    node.start()
                if (number + 1) % 10 == 0:
                    print_progress(
                        f"round {number + 1}: {sum(p.acknowledged for p in producers)} acknowledged, seed {seed}"
                    )
            _finish(producers, reader)
            final = _read_all(node.bootstrap, history)
        finally:
            reader.consumer.close()
            for producer in producers:
                producer.producer.purge()
        # After a last clean stop and start, nothing may have changed.
        assert node.terminate() == 0, f"the node did not stop cleanly after the last round: {node.log_text()[-2000:]}"
        node.start()
        again = _read_all(node.bootstrap, history)
        log = node.log_text()
    wrong = [*reader.wrong, *(f"{kind}: {text}" for kind, text in check(history, FinalRead(final)))]
    wrong += [f"{place} differs after a clean restart" for place in final if final[place] != again[place]]
    wrong += [line for line in log.splitlines() if "Traceback" in line or " ERROR " in line or "CRC" in line]
    assert not wrong, f"seed {seed}: {len(wrong)} anomalies, the first: " + "; ".join(wrong[:8])
    acknowledged = sum(producer.acknowledged for producer in producers)
    return (
        f"{rounds} kills, {early} more during recovery, {acknowledged} acknowledged records, 0 anomalies (seed {seed})"
    )


def _create_topics(port: int) -> None:
    async def create() -> None:
        async with Cluster([(LOOPBACK, port)]) as cluster:
            for topic in TOPICS:
                await cluster.partitions(topic, create=True)

    asyncio.run(create())


def _request_producer_ids(port: int, history: History, number: int) -> None:
    async def request() -> None:
        async with Cluster([(LOOPBACK, port)]) as cluster:
            for _ in range(PRODUCER_IDS_PER_ROUND):
                call = history.invoke(f"round {number}", "init_producer_id")
                response = await cluster.request(
                    InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
                )
                assert response.error_code == ErrorCode.NONE, f"InitProducerId failed with error {response.error_code}"
                history.ok(call, producer_id=response.producer_id)

    asyncio.run(request())


def _load(
    producers: list[LoadProducer], reader: Reader, random: Random, seconds: float, until_acknowledged: bool
) -> None:
    """Produce for this long and, with `until_acknowledged`, until each producer has an acknowledgement.

    A kill should hit a node that is working.
    """
    now = time.monotonic()
    end, deadline = now + seconds, now + ACKNOWLEDGED_S_MAX
    before = {producer.name: producer.acknowledged for producer in producers}
    while time.monotonic() < end or (
        until_acknowledged
        and time.monotonic() < deadline
        and any(producer.acknowledged == before[producer.name] for producer in producers)
    ):
        for producer in producers:
            producer.send(random.randrange(BURST), random)
            producer.producer.poll(0.002)
        reader.poll()


def _kill_during_start(node: NodeProcess, after_s: float) -> int:
    """Return 1 if the kill came before the node served, else 0."""
    try:
        node.start(after_s)
    except ProcessFailed:
        return 1
    node.kill()
    return 0


def _finish(producers: list[LoadProducer], reader: Reader) -> None:
    deadline = time.monotonic() + DELIVERY_S_MAX
    while any(producer.open for producer in producers) and time.monotonic() < deadline:
        for producer in producers:
            producer.producer.poll(0.02)
        reader.poll()
    left = {producer.name: producer.open for producer in producers if producer.open}
    assert not left, f"the node is running, but these records were not delivered within {DELIVERY_S_MAX:.0f} s: {left}"
    while reader.poll(wait_s=1.0):
        pass


def _read_all(bootstrap: str, history: History) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """Read everything with a new client that verifies every checksum."""
    from confluent_kafka import Consumer, TopicPartition

    places = [(topic, index) for topic in TOPICS for index in range(PARTITIONS)]
    final: dict[tuple[str, int], list[tuple[int, str]]] = {place: [] for place in places}
    settings = {"group.id": "final", "enable.auto.commit": False, "check.crcs": True, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        ends = {
            place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=READ_S_MAX)[1] for place in places
        }
        consumer.assign([TopicPartition(*place, 0) for place in places])
        deadline = time.monotonic() + READ_S_MAX
        while any(len(final[place]) < ends[place] for place in places):
            assert time.monotonic() < deadline, f"not all records could be read within {READ_S_MAX:.0f} s"
            for message in consumer.consume(1000, 0.2):
                assert message.error() is None, f"the final read failed: {message.error()}"
                place, record = _record(message)
                final[place].append(record)
    finally:
        consumer.close()
    return final
