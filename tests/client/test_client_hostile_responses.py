"""Fetch responses that no honest broker sends: the reader gets a named error, and every good record once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.scripted_broker import TOPIC, TOPIC_ID, ScriptedBroker, fetched, served

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition, Uuid
from headrace.client.consumer.consumer import AsyncConsumer
from headrace.client.consumer.range_reader import OffsetGone, RangeOptions, TopicChanged, read_range
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.frames import UnexpectedResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.records.builder import BatchBuilder

HERE = TopicPartition(TOPIC, 0)


def batch(first: int, count: int = 10, epoch: int = 3) -> bytes:
    builder = BatchBuilder()
    for index in range(count):
        builder.append(1000 + index, None, b"%d" % (first + index))
    return bytes(builder.build(base_offset=first, leader_epoch=epoch))


def log(request: FetchRequest) -> FetchResponse:
    """Return an honest response: ten records, starting with the batch that holds the fetch offset."""
    first = request.topics[0].partitions[0].fetch_offset // 10 * 10
    return fetched(batch(first) if first < 100 else b"")


def damaged(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]


async def read(cluster: Cluster, end: int = 100, **options: Any) -> list[int]:
    found: list[int] = []
    async for rows in read_range(cluster, HERE, 0, end, RangeOptions(columns=("offset",), **options)):
        found += rows["offset"].to_pylist()
    return found


def run(broker: ScriptedBroker, work: Callable[..., Any]) -> list[int] | None:
    async def whole() -> list[int] | None:
        async with served(broker) as cluster:
            return await asyncio.wait_for(work(cluster), 20)

    return asyncio.run(whole())


def test_a_range_from_an_honest_broker_is_read_completely() -> None:
    assert run(ScriptedBroker(log), read) == list(range(100))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (damaged(batch(0), -1), "t-0 at offset 0: its checksum is"),
        (batch(0)[:-1], "t-0 at offset 0: .* bytes are not one whole batch"),
        (batch(0)[:40], "t-0 at offset 0: 40 bytes are not one whole batch"),
        (batch(0)[:16] + b"\x09" + batch(0)[17:], "t-0 at offset 0: batch has magic 9"),
        (batch(0)[:8] + b"\x00\x00\x00\x05" + batch(0)[12:], "t-0 at offset 0: batch length 5 is smaller than"),
        (b"\xff" * 200, "t-0 at offset 0: "),
    ],
)
def test_malformed_batches_raise_corrupt_message_on_every_poll(data: bytes, message: str) -> None:
    async def poll(cluster: Cluster) -> None:
        consumer = AsyncConsumer({"auto.offset.reset": "earliest", "retry.backoff.ms": 1}, cluster=cluster)
        consumer.assign([HERE])
        try:
            for _ in range(2):  # the error repeats until the consumer seeks
                with pytest.raises(KafkaError, match=message) as refused:
                    await consumer.poll(5.0)
                assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
                assert await consumer.position(HERE) == 0
        finally:
            await consumer.close()

    async def read_it(cluster: Cluster) -> None:
        with pytest.raises(KafkaError, match=message):
            await read(cluster)

    broker = ScriptedBroker(lambda request: fetched(data))
    run(broker, poll)
    run(broker, read_it)


def test_records_before_a_damaged_batch_are_read_and_a_seek_skips_it() -> None:
    def response(request: FetchRequest) -> FetchResponse:
        good = log(request)
        if request.topics[0].partitions[0].fetch_offset < 20:
            return fetched(batch(0) + damaged(batch(10), -3) + batch(20))
        return good

    async def work(cluster: Cluster) -> None:
        consumer = AsyncConsumer({"auto.offset.reset": "earliest", "retry.backoff.ms": 1}, cluster=cluster)
        consumer.assign([HERE])
        try:
            found = [record.offset for record in await consumer.poll(5.0)]
            assert found == list(range(10))
            with pytest.raises(KafkaError, match="t-0 at offset 10: its checksum is"):
                await consumer.poll(5.0)
            consumer.seek(HERE, 20)
            assert (await consumer.poll(5.0, 1))[0].offset == 20
        finally:
            await consumer.close()

    run(ScriptedBroker(response), work)


def mismatched_response(**changes: Any) -> FetchResponse:
    response = fetched(batch(0))
    topic = response.responses[0]
    if "topic_id" in changes:
        topic.topic_id = changes["topic_id"]
    if "index" in changes:
        topic.partitions[0].partition_index = changes["index"]
    if changes.get("twice"):
        response.responses.append(topic)
    return response


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (
            mismatched_response(topic_id=Uuid(b"f" * 16)),
            f"broker 1 returned topic id {b'f'.hex() * 16}, which the fetch did not request",
        ),
        (mismatched_response(index=1), "broker 1 returned t-1, which the fetch did not request"),
        (mismatched_response(twice=True), "broker 1 returned t-0, which the fetch did not request"),
        (FetchResponse(), "the response of broker 1 does not contain t-0"),
    ],
)
def test_fetch_responses_that_do_not_match_the_request_raise_unexpected_answer(
    response: FetchResponse, message: str
) -> None:
    async def work(cluster: Cluster) -> None:
        with pytest.raises(UnexpectedResponse, match=message):
            await read(cluster)
        if response.responses:
            consumer = AsyncConsumer({"auto.offset.reset": "earliest"}, cluster=cluster)
            consumer.assign([HERE])
            with pytest.raises(UnexpectedResponse, match=message):
                await consumer.poll(5.0)
            await consumer.close()

    run(ScriptedBroker(lambda request: response), work)


def test_a_top_level_fetch_error_is_raised() -> None:
    async def work(cluster: Cluster) -> None:
        with pytest.raises(KafkaError, match="INVALID_REQUEST: a fetch from broker 1"):
            await read(cluster)

    run(ScriptedBroker(lambda request: FetchResponse(error_code=int(ErrorCode.INVALID_REQUEST))), work)


def test_retriable_fetch_errors_lose_no_records() -> None:
    codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR]

    def response(request: FetchRequest) -> FetchResponse:
        return (
            fetched(b"", code=codes.pop()) if codes and request.topics[0].partitions[0].fetch_offset else log(request)
        )

    assert run(ScriptedBroker(response), read) == list(range(100)) and codes == []


def test_an_unknown_error_code_is_raised_after_the_stall_timeout() -> None:
    broker = ScriptedBroker(lambda request: fetched(b""))
    broker.fetch = lambda request: _with_code(999)

    async def work(cluster: Cluster) -> None:
        with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR: t-0 at offset 0"):
            await read(cluster, stall_s_max=0.3)

    run(broker, work)


def _with_code(code: int) -> FetchResponse:
    response = fetched(b"")
    response.responses[0].partitions[0].error_code = code
    return response


def test_a_range_beyond_the_log_end_raises_offset_gone() -> None:
    async def work(cluster: Cluster) -> None:
        found: list[int] = []
        with pytest.raises(OffsetGone, match="t-0: offset 100 does not exist; the partition holds 0 to 100"):
            async for rows in read_range(cluster, HERE, 85, 120, RangeOptions(columns=("offset",), stall_s_max=0.3)):
                found += rows["offset"].to_pylist()
        assert found == list(range(85, 100))

    run(ScriptedBroker(log), work)


def test_a_topic_recreated_during_a_read_raises_topic_changed() -> None:
    def response(request: FetchRequest) -> FetchResponse:
        if request.topics[0].topic_id != TOPIC_ID or request.topics[0].partitions[0].fetch_offset == 50:
            broker.topic_id = Uuid(b"another topic id")
            return fetched(b"", code=ErrorCode.UNKNOWN_TOPIC_ID)
        return log(request)

    broker = ScriptedBroker(response)

    async def work(cluster: Cluster) -> None:
        found: list[int] = []
        with pytest.raises(TopicChanged, match="topic t was recreated"):
            async for rows in read_range(cluster, HERE, 0, 100, RangeOptions(columns=("offset",))):
                found += rows["offset"].to_pylist()
        assert found == list(range(50))

    run(broker, work)


def test_log_truncation_is_detected_by_the_diverging_epoch() -> None:
    """The new leader has fewer records than were read from the old one (KIP-320)."""

    def response(request: FetchRequest) -> FetchResponse:
        requested = request.topics[0].partitions[0]
        if requested.fetch_offset < 20:
            return fetched(batch(0, epoch=1) + batch(10, epoch=1))  # written under leader epoch 1; metadata names 3
        assert requested.last_fetched_epoch == 1 and requested.current_leader_epoch == 3
        return fetched(b"", diverging_epoch=FetchResponse.EpochEndOffset(epoch=1, end_offset=14))

    async def work(cluster: Cluster, reset: str) -> None:
        consumer = AsyncConsumer({"auto.offset.reset": reset}, cluster=cluster)
        consumer.assign([HERE])
        consumer.seek(HERE, 0)
        try:
            assert len(await consumer.poll(5.0)) == 20
            if reset == "none":
                with pytest.raises(KafkaError, match="t-0: offset 20 was truncated away, the log agrees up to 14"):
                    await consumer.poll(5.0)
            else:
                assert [record.offset for record in await consumer.poll(5.0)] == list(range(14, 20))
        finally:
            await consumer.close()

    for reset in ("none", "earliest"):
        run(ScriptedBroker(response), lambda cluster, reset=reset: work(cluster, reset))


def test_truncation_beyond_the_consumed_position_loses_no_records() -> None:
    """The first fetch is consumed record by record while the log is truncated after the records fetched ahead."""
    state = {"truncated": False}

    def response(request: FetchRequest) -> FetchResponse:
        requested = request.topics[0].partitions[0]
        if requested.fetch_offset < 20 and not state["truncated"]:
            return fetched(batch(0, epoch=1) + batch(10, epoch=1))
        if not state["truncated"]:
            state["truncated"] = True
            return fetched(b"", diverging_epoch=FetchResponse.EpochEndOffset(epoch=1, end_offset=10))
        return fetched(batch(requested.fetch_offset // 10 * 10, epoch=3))

    async def work(cluster: Cluster) -> None:
        consumer = AsyncConsumer({"auto.offset.reset": "none"}, cluster=cluster)
        consumer.assign([HERE])
        consumer.seek(HERE, 0)
        try:
            found: list[int] = []
            while len(found) < 30:
                found += [record.offset for record in await consumer.poll(5.0, 4)]
                await asyncio.sleep(0.02)
            assert found[:30] == list(range(30)) and state["truncated"]
        finally:
            await consumer.close()

    run(ScriptedBroker(response), work)


def test_buffered_records_of_a_paused_partition_keep_their_order() -> None:
    """A1, B1 and A2 are buffered when A is paused; after it is resumed A1 comes before A2."""

    def response(request: FetchRequest) -> FetchResponse:
        topic = FetchResponse.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID)
        for one in request.topics[0].partitions:
            data = batch(one.fetch_offset) if one.partition == 0 or one.fetch_offset == 0 else b""
            topic.partitions.append(
                FetchResponse.PartitionData(
                    partition_index=one.partition, high_watermark=100, log_start_offset=0, records=data
                )
            )
        return FetchResponse(responses=[topic])

    async def work(cluster: Cluster) -> None:
        there = TopicPartition(TOPIC, 1)
        consumer = AsyncConsumer({"auto.offset.reset": "earliest"}, cluster=cluster)
        consumer.assign([HERE, there])
        try:
            for _ in range(3):
                assert len(await consumer.poll(5.0, 1)) == 1
                await asyncio.sleep(0.05)  # lets fetched-ahead data arrive
            consumer.pause([HERE])
            while await consumer.position(there) < 10:
                assert {record.partition for record in await consumer.poll(5.0, 3)} == {1}
            consumer.resume([HERE])
            before = await consumer.position(HERE)
            found: list[int] = []
            while len(found) < 25:
                found += [record.offset for record in await consumer.poll(5.0, 7) if record.partition == 0]
            assert found == list(range(before, before + len(found)))
        finally:
            await consumer.close()

    run(ScriptedBroker(response, partitions=2), work)


def test_an_idle_partition_does_not_delay_a_busy_one() -> None:
    """Two partitions have one leader: while the busy one's buffer is full, the other is fetched without waiting."""

    def response(request: FetchRequest) -> FetchResponse:
        waits.append((request.max_wait_ms, sorted(one.partition for one in request.topics[0].partitions)))
        busy = [one for one in request.topics[0].partitions if one.partition == 0]
        found = fetched(batch(busy[0].fetch_offset // 10 * 10) if busy else b"")
        found.responses[0].partitions[0].partition_index = 0 if busy else 1
        return found

    waits: list[tuple[int, list[int]]] = []

    async def work(cluster: Cluster) -> None:
        consumer = AsyncConsumer({"auto.offset.reset": "earliest"}, cluster=cluster)
        consumer.assign([HERE, TopicPartition(TOPIC, 1)])
        for _ in range(12):
            assert len(await consumer.poll(5.0, 1)) == 1
            await asyncio.sleep(0.01)
        await consumer.close()

    run(ScriptedBroker(response, partitions=2), work)
    assert (0, [1]) in waits and all(wait == 500 for wait, partitions in waits if 0 in partitions)
