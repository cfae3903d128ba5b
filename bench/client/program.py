"""One client library under load in a separate process: `python -m bench.client.program JSON` prints the result as JSON.

Both libraries run with their defaults, except for settings without which rows would be lost or the client would stall.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from bench.load.frames import SEED, random_values
from headrace.base.ids import TopicPartition
from headrace.records.compression import Codec

ROWS = 64 * 1024  # maximum rows of the Arrow batch that is sent repeatedly
POLL_S = 5.0
CONSUME_MESSAGES = 10_000  # messages per consume() call of confluent-kafka
PRODUCE_MESSAGES = 1000  # messages between two checks of the clock and of deliveries
BUFFERED_MESSAGES = 1_000_000  # confluent-kafka's default is a tenth of it, which makes it wait more often
FULL_S = 0.01
FETCH_BACKOFF_MS = 10  # confluent-kafka waits this long whenever its queue was full; the default is one second
FLUSH_S_MAX = 60.0
WARM_PART = 20  # a consumer's warm-up is the first twentieth of the records


@dataclass(frozen=True)
class ClientJob:
    client: str
    operation: str  # produce or consume
    bootstrap: str
    topic: str
    partitions: int
    value_bytes: int
    codec: str
    records: int  # maximum number of records to read or write
    seconds: float
    warm_seconds: float


@dataclass(frozen=True)
class ClientResult:
    rows: int  # rows after the warm-up
    seconds: float
    cpu_s: float  # CPU time of this process
    all_rows: int


class Meter:
    """Counts rows, and measures time and CPU time since the last restart."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.rows = 0
        self._began, self._cpu = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def result(self, all_rows: int) -> ClientResult:
        return ClientResult(self.rows, self.seconds, time.process_time() - self._cpu, all_rows)


def values_for(job: ClientJob) -> list[bytes]:
    count = min(ROWS, job.records)
    return random_values(Random(SEED), count, job.value_bytes, Codec[job.codec.upper()])


class ConsumeMeter:
    """Measures a consumer after its warm-up, until the end of the topic or of the time."""

    def __init__(self, job: ClientJob) -> None:
        self._job = job
        self._all_rows = 0
        self._is_warm = False
        self._meter, self._whole = Meter(), Meter()

    @property
    def left(self) -> int:
        return self._job.records - self._all_rows

    @property
    def is_unfinished(self) -> bool:
        return self.left > 0 and not (self._is_warm and self._meter.seconds > self._job.seconds)

    def add(self, rows: int) -> None:
        if not rows:
            raise SystemExit(f"{self._job.topic} ended after {self._all_rows} of {self._job.records} rows")
        self._all_rows += rows
        if self._is_warm:
            self._meter.rows += rows
        elif self._all_rows * WARM_PART >= self._job.records:
            self._is_warm = True
            self._meter.restart()

    def result(self) -> ClientResult:
        if self._meter.rows == 0:  # the topic is so small that the warm-up read all of it
            self._meter = self._whole
            self._meter.rows = self._all_rows
        return self._meter.result(self._all_rows)


# --- Headrace


async def headrace_produce(job: ClientJob) -> ClientResult:
    import pyarrow as pa

    from headrace.client import AsyncProducer

    rows = pa.record_batch({"value": pa.array(values_for(job), pa.binary())})
    options = {"bootstrap.servers": job.bootstrap, "compression.type": job.codec}
    async with AsyncProducer(options) as producer:

        async def write(seconds: float, rows_max: int) -> int:
            sent, began = 0, time.perf_counter()
            deliveries = []
            while sent < rows_max and time.perf_counter() - began < seconds:
                some = rows.slice(0, rows_max - sent)
                deliveries.append(await producer.send_batch(job.topic, some))
                sent += some.num_rows
            await producer.flush()
            for delivery in deliveries:
                delivery.result()
            return sent

        warm = await write(job.warm_seconds, job.records)
        meter = Meter()
        meter.rows = await write(job.seconds, job.records)
        return meter.result(warm + meter.rows)


async def headrace_consume(job: ClientJob) -> ClientResult:
    from headrace.client import AsyncConsumer

    options = {"bootstrap.servers": job.bootstrap, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    async with AsyncConsumer(options) as consumer:
        consumer.assign([TopicPartition(job.topic, partition) for partition in range(job.partitions)])
        meter = ConsumeMeter(job)
        while meter.is_unfinished:
            meter.add(sum(batch.num_rows for _, batch in await consumer.poll_batch(POLL_S)))
        return meter.result()


# --- confluent-kafka


def confluent_produce(job: ClientJob) -> ClientResult:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "compression.type": job.codec,
            "queue.buffering.max.messages": BUFFERED_MESSAGES,
        }
    )
    values = values_for(job)

    def send(some: list[bytes]) -> None:
        produce, topic = producer.produce, job.topic
        for value in some:
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    producer.poll(FULL_S)
        producer.poll(0)

    def write(seconds: float, rows_max: int) -> int:
        sent, began = 0, time.perf_counter()
        while sent < rows_max and time.perf_counter() - began < seconds:
            at = sent % len(values)
            some = values[at : at + min(PRODUCE_MESSAGES, rows_max - sent)]
            send(some)
            sent += len(some)
        left = producer.flush(FLUSH_S_MAX)
        if left:
            raise SystemExit(f"{left} messages were not delivered within {FLUSH_S_MAX:.0f} s")
        return sent

    warm = write(job.warm_seconds, job.records)
    meter = Meter()
    meter.rows = write(job.seconds, job.records)
    return meter.result(warm + meter.rows)


def confluent_consume(job: ClientJob) -> ClientResult:
    """Consume and access each value, without the further work of building Arrow batches."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": FETCH_BACKOFF_MS,
        }
    )
    consumer.assign([TopicPartition(job.topic, partition, 0) for partition in range(job.partitions)])
    meter = ConsumeMeter(job)
    while meter.is_unfinished:
        messages = consumer.consume(min(CONSUME_MESSAGES, meter.left), POLL_S)  # waits until it has all of them
        for message in messages:
            if message.error():
                raise SystemExit(str(message.error()))
            message.value()
        meter.add(len(messages))
    result = meter.result()
    consumer.close()
    return result


PROGRAMS: dict[tuple[str, str], Callable[[ClientJob], Any]] = {
    ("headrace", "produce"): lambda job: asyncio.run(headrace_produce(job)),
    ("headrace", "consume"): lambda job: asyncio.run(headrace_consume(job)),
    ("confluent", "produce"): confluent_produce,
    ("confluent", "consume"): confluent_consume,
}


if __name__ == "__main__":
    job = ClientJob(**json.loads(sys.argv[1]))
    print(json.dumps(asdict(PROGRAMS[job.client, job.operation](job))))
