"""A node that dies under load or stops responding: nothing is lost or duplicated; memory and waiting are bounded."""

from __future__ import annotations

import asyncio
import time

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client import AsyncProducer
from headrace.client.producer.buffer_space import BufferFull
from headrace.client.producer.deliveries import Sent
from tools.prove.client_conformance.server import WAIT_S_MAX, Stage

PARTITIONS = 4
KILLS = 2
CALM_S = 1.0  # seconds of load before and after each kill
PATIENCE_MS = 600_000  # on a busy machine a node may need minutes to come back
BUFFER = 256 * 1024
BLOCK_MS = 700
DELIVERY_MS, REQUEST_MS = 2500, 1000
SLACK_S = 2.0  # the machine is busy


def restarts_under_load(stage: Stage) -> str:
    """Kill the node while idempotent batches are in flight.

    Acknowledged records must be at their acknowledged offsets, and every record must be there once and in order.
    """
    topic = stage.topic(PARTITIONS)
    sent = asyncio.run(_load(stage, topic))
    for index, records in enumerate(stage.read(topic, PARTITIONS)):
        values = [int(one.value or b"-1") for one in records]
        mine = sent[index]
        assert values == list(range(len(mine))), (
            f"partition {index}: {len(values)} records of {len(mine)}, {len(values) - len(set(values))} doubled, "
            f"the first that differs is {next((n for n, one in enumerate(values) if n != one), len(values))}"
        )
        wrong = [(number, offset) for number, offset in enumerate(mine) if records[number].offset != offset]
        assert not wrong, f"partition {index}: {len(wrong)} records are not where it was said, the first {wrong[0]}"
    return f"{sum(map(len, sent))} records over {KILLS} kills of the node"


async def _load(stage: Stage, topic: str) -> list[list[int]]:
    """Return the acknowledged offsets by partition, in sending order."""
    futures: list[list[asyncio.Future[Sent]]] = [[] for _ in range(PARTITIONS)]

    async def some_arrive() -> None:
        for some in futures:
            await some[-1]
        await asyncio.sleep(CALM_S)

    async def kill() -> None:
        for _ in range(KILLS):
            await some_arrive()
            await asyncio.to_thread(stage.server.kill)
            await asyncio.to_thread(stage.server.start)
        await some_arrive()

    patient = {"delivery_timeout_ms": PATIENCE_MS, "max_block_ms": PATIENCE_MS}
    options = stage.options(linger_ms=2, batch_size=4000, **patient)
    async with AsyncProducer(options) as producer, asyncio.timeout(PATIENCE_MS / 1000):
        number = 0
        killing = None
        while killing is None or not killing.done():
            for index in range(PARTITIONS):
                futures[index].append(await producer.send(topic, b"%d" % number, partition=index))
            killing = killing or asyncio.create_task(kill())
            number += 1
            await asyncio.sleep(0.001)
        await killing
        return [[(await one).offset for one in some] for some in futures]


def back_pressure(stage: Stage) -> str:
    """Send to a paused node until the buffer is full.

    The producer accepts as much as buffer.memory allows, then send blocks, then it raises; everything accepted is
    delivered later.
    """
    return asyncio.run(_press(stage, stage.topic(1)))


async def _press(stage: Stage, topic: str) -> str:
    value = b"x" * 1000
    options = stage.options(buffer_memory=BUFFER, max_block_ms=BLOCK_MS, linger_ms=0)
    async with AsyncProducer(options) as producer:
        await (await producer.send(topic, b"first"))
        taken = []
        with stage.paused():
            begun = time.monotonic()
            try:
                while True:
                    begun = time.monotonic()
                    taken.append(await producer.send(topic, value))
            except BufferFull:
                waited_s = time.monotonic() - begun
            available = producer.metrics()["buffer-available-bytes"]
            assert not any(one.done() for one in taken)
        assert BLOCK_MS / 1000 - 0.05 <= waited_s <= BLOCK_MS / 1000 + SLACK_S, f"waited {waited_s:.2f} s"
        assert BUFFER * 0.5 <= len(taken) * len(value) <= BUFFER, f"{len(taken)} records in {BUFFER} bytes"
        assert available < 2 * len(value), f"{available} bytes were left"
        async with asyncio.timeout(WAIT_S_MAX):
            offsets = [(await one).offset for one in taken]
        assert offsets == list(range(1, len(taken) + 1))
        assert producer.metrics()["buffer-available-bytes"] == BUFFER
    return f"{len(taken)} KB taken of {BUFFER // 1024}, told after {waited_s:.1f} s"


def delivery_timeout(stage: Stage) -> str:
    """Pause the node for longer than delivery.timeout.ms.

    The deliveries must fail in time, and later records must be there once and in order.
    """
    return asyncio.run(_time_out(stage, stage.topic(1)))


async def _time_out(stage: Stage, topic: str) -> str:
    options = stage.options(delivery_timeout_ms=DELIVERY_MS, request_timeout_ms=REQUEST_MS, linger_ms=0)
    async with AsyncProducer(options) as producer:
        await (await producer.send(topic, b"first"))
        with stage.paused():
            begun = time.monotonic()
            late = [await producer.send(topic, b"late") for _ in range(3)]
            for one in late:
                try:
                    await one
                except KafkaError as error:
                    assert error.code is ErrorCode.REQUEST_TIMED_OUT, error
                else:
                    raise AssertionError("delivered by a node that does not move")
            waited_s = time.monotonic() - begun
            assert DELIVERY_MS / 1000 - 0.1 <= waited_s <= DELIVERY_MS / 1000 + REQUEST_MS / 1000 + SLACK_S, waited_s
        async with asyncio.timeout(WAIT_S_MAX):
            for number in range(100):
                while True:  # the node first processes everything that arrived during the pause
                    try:
                        await (await producer.send(topic, b"%d" % number))
                        break
                    except KafkaError as error:
                        assert error.code is ErrorCode.REQUEST_TIMED_OUT, error
                        assert number == 0, "it goes on, and then it does not"
    values = [one.value for one in (await asyncio.to_thread(stage.read, topic))[0]]
    after = [value for value in values[1:] if value != b"late"]
    assert after[-100:] == [b"%d" % number for number in range(100)], after[:5]
    assert set(after[:-100]) <= {b"0"} and values.count(b"late") <= len(late), values[:10]
    return f"told after {waited_s:.1f} s"
