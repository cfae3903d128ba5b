"""A node that dies under load or stops responding: nothing is lost or duplicated; memory and waiting are bounded."""

from __future__ import annotations

import asyncio
import time

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client import AsyncProducer
from headrace.client.producer.buffer_space import BufferFull
from headrace.client.producer.deliveries import Sent
from tools.prove.client_conformance.server import WAIT_S_MAX, ServerUnderTest

PARTITIONS = 4
KILLS = 2
LOAD_S = 1.0  # seconds of load before and after each kill
RESTART_MS_MAX = 600_000  # on a busy machine a node may take minutes to restart
BUFFER = 256 * 1024
BLOCK_MS = 700
DELIVERY_MS, REQUEST_MS = 2500, 1000
SLACK_S = 2.0  # tolerance for a busy machine


def restarts_under_load(server: ServerUnderTest) -> str:
    """Kill the node while idempotent batches are in flight.

    Acknowledged records must be at their acknowledged offsets, and every record must be there once and in order.
    """
    topic = server.topic(PARTITIONS)
    sent = asyncio.run(_load(server, topic))
    for index, records in enumerate(server.read(topic, PARTITIONS)):
        values = [_number(one.value) for one in records]
        offsets = sent[index]
        assert values == list(range(len(offsets))), (
            f"partition {index}: {len(values)} records of {len(offsets)}, {len(values) - len(set(values))} duplicated, "
            f"the first that differs is {next((n for n, one in enumerate(values) if n != one), len(values))}"
        )
        wrong = [(number, offset) for number, offset in enumerate(offsets) if records[number].offset != offset]
        assert not wrong, (
            f"partition {index}: {len(wrong)} records are not at their acknowledged offsets, the first {wrong[0]}"
        )
    return f"{sum(map(len, sent))} records over {KILLS} kills of the node"


def _number(value: bytes | None) -> int:
    assert value is not None
    return int(value)


async def _load(server: ServerUnderTest, topic: str) -> list[list[int]]:
    """Return the acknowledged offsets by partition, in sending order."""
    futures: list[list[asyncio.Future[Sent]]] = [[] for _ in range(PARTITIONS)]

    async def wait_for_acknowledgements() -> None:
        for partition in futures:
            await partition[-1]
        await asyncio.sleep(LOAD_S)

    async def kill() -> None:
        for _ in range(KILLS):
            await wait_for_acknowledgements()
            await asyncio.to_thread(server.process.kill)
            await asyncio.to_thread(server.process.start)
        await wait_for_acknowledgements()

    timeouts = {"delivery_timeout_ms": RESTART_MS_MAX, "max_block_ms": RESTART_MS_MAX}
    options = server.options(linger_ms=2, batch_size=4000, **timeouts)
    async with AsyncProducer(options) as producer, asyncio.timeout(RESTART_MS_MAX / 1000):
        number = 0
        killing = None
        while killing is None or not killing.done():
            for index in range(PARTITIONS):
                futures[index].append(await producer.send(topic, b"%d" % number, partition=index))
            killing = killing or asyncio.create_task(kill())
            number += 1
            await asyncio.sleep(0.001)
        await killing
        return [[(await one).offset for one in partition] for partition in futures]


def back_pressure(server: ServerUnderTest) -> str:
    """Send to a paused node until the buffer is full.

    The producer accepts as much as buffer.memory allows, then send blocks, then it raises; everything accepted is
    delivered later.
    """
    return asyncio.run(_fill_buffer(server, server.topic(1)))


async def _fill_buffer(server: ServerUnderTest, topic: str) -> str:
    value = b"x" * 1000
    options = server.options(buffer_memory=BUFFER, max_block_ms=BLOCK_MS, linger_ms=0)
    async with AsyncProducer(options) as producer:
        await (await producer.send(topic, b"first"))
        accepted = []
        with server.paused():
            started = time.monotonic()
            try:
                while True:
                    started = time.monotonic()
                    accepted.append(await producer.send(topic, value))
            except BufferFull:
                waited_s = time.monotonic() - started
            available = producer.metrics()["buffer-available-bytes"]
            assert not any(one.done() for one in accepted)
        assert BLOCK_MS / 1000 - 0.05 <= waited_s <= BLOCK_MS / 1000 + SLACK_S, f"waited {waited_s:.2f} s"
        assert BUFFER * 0.5 <= len(accepted) * len(value) <= BUFFER, f"{len(accepted)} records in {BUFFER} bytes"
        assert available < 2 * len(value), f"{available} bytes of the buffer were left"
        async with asyncio.timeout(WAIT_S_MAX):
            offsets = [(await one).offset for one in accepted]
        assert offsets == list(range(1, len(accepted) + 1))
        assert producer.metrics()["buffer-available-bytes"] == BUFFER
    return f"{len(accepted)} KB accepted of {BUFFER // 1024}, BufferFull after {waited_s:.1f} s"


def delivery_timeout(server: ServerUnderTest) -> str:
    """Pause the node for longer than delivery.timeout.ms.

    The deliveries must fail in time, and later records must be there once and in order.
    """
    return asyncio.run(_time_out(server, server.topic(1)))


async def _time_out(server: ServerUnderTest, topic: str) -> str:
    options = server.options(delivery_timeout_ms=DELIVERY_MS, request_timeout_ms=REQUEST_MS, linger_ms=0)
    async with AsyncProducer(options) as producer:
        await (await producer.send(topic, b"first"))
        with server.paused():
            started = time.monotonic()
            late = [await producer.send(topic, b"late") for _ in range(3)]
            for one in late:
                try:
                    await one
                except KafkaError as error:
                    assert error.code is ErrorCode.REQUEST_TIMED_OUT, error
                else:
                    raise AssertionError("a record was delivered to a paused node")
            waited_s = time.monotonic() - started
            assert DELIVERY_MS / 1000 - 0.1 <= waited_s <= DELIVERY_MS / 1000 + REQUEST_MS / 1000 + SLACK_S, waited_s
        async with asyncio.timeout(WAIT_S_MAX):
            for number in range(100):
                while True:  # the node first processes everything that arrived during the pause
                    try:
                        await (await producer.send(topic, b"%d" % number))
                        break
                    except KafkaError as error:
                        assert error.code is ErrorCode.REQUEST_TIMED_OUT, error
                        assert number == 0, "a later record timed out after the first one was delivered"
    values = [one.value for one in (await asyncio.to_thread(server.read, topic))[0]]
    after = [value for value in values[1:] if value != b"late"]
    assert after[-100:] == [b"%d" % number for number in range(100)], after[:5]
    assert set(after[:-100]) <= {b"0"} and values.count(b"late") <= len(late), values[:10]
    return f"timed out after {waited_s:.1f} s"
