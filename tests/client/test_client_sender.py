"""The sender with fake brokers: retries, order, epochs, limits, and never a record twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from testkit.simulator.loop import SimulatedLoop
from tests.client.fake_cluster import CUT, SILENCE, FakeCluster, FakeLog

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.producer.buffer_space import BufferFull
from headrace.client.producer.producer import AsyncProducer, ProducerClosed
from headrace.protocol.messages.metadata import MetadataResponse

FAST = {
    "bootstrap.servers": "fake:1",
    "linger.ms": 0,
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 2,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 2,
}


def run_virtual(main: Awaitable[Any]) -> Any:
    """Run in virtual time, so that nothing depends on how busy the machine is."""
    loop = SimulatedLoop(Random(1), steps_max=1_000_000)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def run(
    work: Callable[..., Any],
    script: Callable[..., Any] | FakeLog | None = None,
    cluster: Any = None,
    runner: Callable[..., Any] = run_virtual,
    **options: Any,
) -> Any:
    """Run `work` with a started producer and its cluster."""
    cluster = cluster or FakeCluster(script or FakeLog())
    given = FAST | {name.replace("_", "."): value for name, value in options.items()}

    async def main() -> Any:
        async with asyncio.timeout(20), AsyncProducer(given, cluster=cluster, random=Random(1)) as producer:
            return await work(producer, cluster)

    return runner(main())


async def send(producer: AsyncProducer, *values: bytes, partition: int = 0) -> list[asyncio.Future[Any]]:
    return [await producer.send("t", value, partition=partition) for value in values]


def test_records_sent_together_share_a_batch_and_get_their_offsets() -> None:
    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        futures = await send(producer, b"a", b"b", b"c")
        sent = [await future for future in futures]
        assert [(one.topic, one.partition, one.offset) for one in sent] == [("t", 0, 0), ("t", 0, 1), ("t", 0, 2)]
        assert [batch.values for request in cluster.requests for batch in request.batches] == [[b"a", b"b", b"c"]]
        assert cluster.requests[0].message.acks == -1 and cluster.requests[0].batches[0].header.producer_id == 7

    run(work)


@pytest.mark.parametrize(
    "fault", [CUT, "written, and cut", ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.CORRUPT_MESSAGE]
)
@pytest.mark.parametrize("when", [0, 1, 3])
def test_faults_do_not_lose_duplicate_or_reorder_records(fault: ErrorCode | str, when: int) -> None:
    log = FakeLog(*[None] * when, fault, fault)
    values = [b"%d" % number for number in range(60)]

    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        futures: list[asyncio.Future[Any]] = []
        for value in values:
            futures += await send(producer, value)
            if len(futures) % 7 == 0:
                await asyncio.sleep(0.001)
        offsets = [(await future).offset for future in futures]
        assert log.log[0] == values and offsets == list(range(60))

    run(work, log, batch_size=100)


def test_requests_are_pipelined_up_to_the_in_flight_limit() -> None:
    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        await (await send(producer, b"first"))[0]
        await send(producer, *[b"x" * 90 for _ in range(20)])
        await asyncio.sleep(0.01)
        assert len(cluster.requests) == 1 + 3 and producer.metrics()["requests-in-flight"] == 3
        cluster.connections[1].cut()

    log = FakeLog(None, SILENCE, SILENCE, SILENCE)
    run(work, log, batch_size=100, max_in_flight_requests_per_connection=3)


def test_one_request_has_a_batch_for_each_partition_of_its_leader() -> None:
    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        for partition in range(4):
            await send(producer, b"%d" % partition, partition=partition)
        await producer.flush()
        assert sorted((r.node_id, sorted(b.partition for b in r.batches)) for r in cluster.requests) == [
            (0, [0, 2]),
            (1, [1, 3]),
        ]

    run(work, cluster=FakeCluster(FakeLog(), leader=lambda partition: partition % 2))


def test_a_rejected_batch_fails_alone_and_the_rest_continue_in_the_next_epoch() -> None:
    log = FakeLog(None, ErrorCode.INVALID_RECORD)

    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        await (await send(producer, b"0"))[0]
        futures = await send(producer, b"bad" * 30, b"1" * 90, b"2" * 90)
        with pytest.raises(KafkaError) as caught:
            await futures[0]
        assert caught.value.code is ErrorCode.INVALID_RECORD
        assert [(await future).offset for future in futures[1:]] == [1, 2]
        assert log.log[0] == [b"0", b"1" * 90, b"2" * 90]
        assert cluster.requests[-1].batches[0].header.producer_epoch == 1

    run(work, log, batch_size=100)


def test_a_batch_that_is_too_large_for_the_topic_is_split_until_it_fits() -> None:
    log = FakeLog()
    values = [b"%02d" % number * 20 for number in range(32)]

    def script(sent: SimpleNamespace) -> Any:
        if any(len(batch.values) > 5 for batch in sent.batches):
            return [(ErrorCode.MESSAGE_TOO_LARGE, -1)] * len(sent.batches)
        return log(sent)

    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        futures = await send(producer, *values)
        assert [(await future).offset for future in futures] == list(range(32))
        assert log.log[0] == values and producer.metrics()["batch-split-total"] == 7

    run(work, script)


def test_a_single_record_that_is_too_large_fails_with_message_too_large() -> None:
    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        with pytest.raises(KafkaError) as caught:
            await (await send(producer, b"x"))[0]
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE

    run(work, FakeLog(ErrorCode.MESSAGE_TOO_LARGE))


def test_a_batch_fails_after_the_configured_retries() -> None:
    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        with pytest.raises(KafkaError) as caught:
            await (await send(producer, b"x"))[0]
        assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS and len(cluster.requests) == 3
        assert producer.metrics()["record-retry-total"] == 2 and producer.metrics()["record-error-total"] == 1
        assert (await (await send(producer, b"y"))[0]).offset == 0  # a new epoch, of which the broker has no state
        assert cluster.requests[-1].batches[0].header.producer_epoch == 1

    run(work, FakeLog(*[ErrorCode.NOT_ENOUGH_REPLICAS] * 3), retries=2)


def test_delivery_timeout_fails_records_when_the_broker_never_responds() -> None:
    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        (future,) = await send(producer, b"x")
        with pytest.raises(KafkaError, match=r"delivery\.timeout\.ms") as caught:
            await future
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT and len(cluster.requests) >= 2

    run(work, lambda sent: SILENCE, request_timeout_ms=30, delivery_timeout_ms=80)


def test_delivery_timeout_fails_records_when_the_broker_is_unreachable() -> None:
    cluster = FakeCluster(FakeLog())
    cluster.down.add(1)

    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        with pytest.raises(KafkaError, match="1 record") as caught:
            await (await send(producer, b"x"))[0]
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT and cluster.refreshed > 1
        cluster.down.clear()
        assert (await (await send(producer, b"y"))[0]).offset == 0

    run(work, cluster=cluster, request_timeout_ms=20, delivery_timeout_ms=50)


def test_send_waits_for_buffer_space_and_raises_buffer_full_after_max_block_ms() -> None:
    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        futures: list[asyncio.Future[Any]] = []
        with pytest.raises(BufferFull, match=r"max\.block\.ms"):
            for _ in range(20):
                futures += await send(producer, b"x" * 100)
        assert 5 < len(futures) < 10
        cluster.script = FakeLog()
        cluster.connections[1].cut()
        for _ in range(20):  # memory is free again
            futures += await send(producer, b"y" * 100)
        assert len({(await future).offset for future in futures}) == len(futures)
        assert producer.metrics()["buffer-available-bytes"] == 1000

    run(work, lambda sent: SILENCE, buffer_memory=1000, max_block_ms=30)


def test_acks_0_completes_without_a_response_and_without_idempotence() -> None:
    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        sent = await (await send(producer, b"x"))[0]
        assert sent.offset == -1 and cluster.requests[0].message.acks == 0
        assert cluster.requests[0].batches[0].header.producer_id == -1

    run(work, lambda sent: SILENCE, acks=0)


def test_without_idempotence_a_lost_response_duplicates_but_one_in_flight_keeps_order() -> None:
    log = FakeLog("written, and cut")

    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        futures = await send(producer, *[b"%d" % number * 60 for number in range(5)])
        await asyncio.gather(*futures)
        assert [value[:1] for value in log.log[0]] == [b"0", b"0", b"1", b"2", b"3", b"4"]

    run(work, log, enable_idempotence=False, max_in_flight_requests_per_connection=1, batch_size=100)


def test_close_sends_buffered_records_and_refuses_new_ones() -> None:
    log = FakeLog()

    async def main() -> None:
        producer = AsyncProducer({**FAST, "linger.ms": 10_000}, cluster=FakeCluster(log))  # type: ignore[arg-type]
        await producer.start()
        (future,) = await send(producer, b"x")
        await producer.close()
        assert (await future).offset == 0
        with pytest.raises(ProducerClosed):
            await send(producer, b"y")

    run_virtual(main())


def test_close_fails_undelivered_records_when_its_timeout_expires() -> None:
    async def main() -> None:
        producer = AsyncProducer(FAST, cluster=FakeCluster(lambda sent: SILENCE))  # type: ignore[arg-type]
        await producer.start()
        (future,) = await send(producer, b"x")
        await producer.close(0.01)
        with pytest.raises(ProducerClosed):
            await future

    run_virtual(main())


def test_large_batches_are_compressed_off_the_event_loop_and_in_order() -> None:
    log = FakeLog()
    values = [Random(number).randbytes(100) * 300 for number in range(20)]

    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        await producer.flush()
        futures = await send(producer, *values)
        await asyncio.gather(*futures)
        assert log.log[0] == values and producer.metrics()["compression-rate-avg"] < 0.2

    run(work, log, runner=asyncio.run, compression_type="zstd", batch_size=100_000, linger_ms=1)


@pytest.mark.parametrize("seed", range(30))
def test_random_faults_do_not_duplicate_or_reorder_acknowledged_records(seed: int) -> None:
    """Check that after random faults, acknowledged records are in the log once, in the order they were sent."""
    random = Random(seed)
    kinds = [None, None, None, CUT, "written, and cut", ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.INVALID_RECORD]
    log = FakeLog(*[random.choice(kinds) for _ in range(40)])

    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        futures: dict[tuple[int, int], asyncio.Future[Any]] = {}
        for number in range(120):
            partition, value = random.randrange(3), b"%d," % number * random.randint(1, 30)
            futures[number, partition] = (await send(producer, value, partition=partition))[0]
            if random.random() < 0.2:
                await asyncio.sleep(random.random() * 0.002)
        await producer.flush()
        found = {index: list(log.log.get(index, [])) for index in range(3)}
        for (number, partition), future in futures.items():
            if future.exception() is None:
                at = found[partition][future.result().offset]
                assert at.startswith(b"%d," % number), (seed, number)
        for index, values in found.items():
            assert len(values) == len(set(values)), (seed, "twice")
            offsets = [f.result().offset for (_, p), f in futures.items() if p == index and f.exception() is None]
            assert offsets == sorted(offsets), (seed, "overtaken")

    run(work, log, cluster=FakeCluster(log, leader=lambda partition: partition % 2), batch_size=200)


def test_send_fails_at_once_with_topic_authorization_failed() -> None:
    class Refusing(FakeCluster):
        async def refresh(self, topics: Sequence[str], *, create: bool = False) -> MetadataResponse:
            response = await super().refresh(topics)
            response.topics[0].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return response

    async def work(producer: AsyncProducer, cluster: Any) -> None:
        with pytest.raises(KafkaError) as caught:
            await producer.send("t", b"x")
        assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED

    run(work, cluster=Refusing(FakeLog()))


def test_send_to_an_unknown_topic_fails_after_max_block_ms() -> None:
    class Empty(FakeCluster):
        async def refresh(self, topics: Sequence[str], *, create: bool = False) -> MetadataResponse:
            response = await super().refresh(topics)
            response.topics[0].error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return response

    async def work(producer: AsyncProducer, cluster: Any) -> None:
        with pytest.raises(KafkaError, match=r"topic t is not known after 0.03 s .*UNKNOWN_TOPIC_OR_PARTITION"):
            await producer.send("t", b"x")

    run(work, cluster=Empty(FakeLog()), max_block_ms=30)


@pytest.mark.parametrize("wrong", ["text", 5, bytearray(b"x")])
def test_send_rejects_invalid_values_partitions_and_sizes(wrong: bytearray | int | str) -> None:
    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        with pytest.raises(TypeError):
            await producer.send("t", wrong)  # type: ignore[arg-type]
        with pytest.raises(KafkaError, match="partitions 0 to 3, not 4"):
            await producer.send("t", b"x", partition=4)
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await producer.send("t", b"x" * 2_000_000)
        assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]

    run(work)


def test_a_batch_is_resent_to_the_new_leader() -> None:
    log = FakeLog(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    cluster = FakeCluster(log)

    async def work(producer: AsyncProducer, cluster: FakeCluster) -> None:
        cluster.leader = lambda partition: 1 if not cluster.forgotten_leaders else 2
        await (await send(producer, b"x"))[0]
        assert [request.node_id for request in cluster.requests] == [1, 2]
        assert cluster.forgotten_leaders == [TopicPartition("t", 0)]

    run(work, cluster=cluster)


def test_an_internal_error_closes_the_producer_and_fails_waiting_sends() -> None:
    async def work(producer: AsyncProducer, cluster: Any) -> None:
        futures = await send(producer, b"x", b"y")
        with pytest.raises(ProducerClosed, match=r"has failed.*oops"):
            await futures[0]
        await producer.flush()
        with pytest.raises(ProducerClosed, match="oops"):
            await send(producer, b"z")

    class Broken(FakeCluster):
        def forget_leader(self, partition: TopicPartition) -> None:
            raise RuntimeError("oops")

    run(work, cluster=Broken(FakeLog(CUT)))
