"""A whole node on simulated disks, in virtual time: failed and full directories, retention, flushes and expiry."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress

import pytest
from testkit.simulator.machine import DATA, SECOND_DATA
from tests.node.node_world import T0, T1, NodeHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.list_offsets import EARLIEST, LATEST
from headrace.client.wire.connection import Disconnected
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.produce import ProduceResponse


@pytest.mark.parametrize("operations, number", [(("append",), errno.EIO), (("append", "sync", "create"), errno.EROFS)])
def test_a_failed_disk_takes_its_partitions_offline_until_a_restart(operations: tuple[str, ...], number: int) -> None:
    harness = NodeHarness(two_dirs=True)

    async def main() -> None:
        await harness.create(2)
        for partition in (T0, T1):
            await harness.send(partition, 5)
        lost, kept = (T0, T1) if harness.log_dir(T0) == SECOND_DATA else (T1, T0)
        assert {harness.log_dir(lost), harness.log_dir(kept)} == {DATA, SECOND_DATA}
        # The metadata log records the directory of each replica.
        ids = {d.path: d.meta.directory_id for d in harness.node.broker.replicas.directories.all() if d.meta}
        await harness.until(lambda: not harness.node.broker.replicas.unassigned)
        image = harness.node.broker.image
        assert image.topics["t"].partitions[lost.partition].directories == (ids[SECOND_DATA],)

        harness.refuse(SECOND_DATA, number, *operations)
        assert await harness.refusal(lost) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await harness.send(kept) == 5
        assert await harness.read(kept) == 6
        assert harness.node.broker.replicas.offline() == [lost]
        # The controller knows: the partition has no leader, and the broker has lost the directory.
        await harness.until(lambda: not harness.node.broker.image.topics["t"].partitions[lost.partition].has_leader)
        assert harness.node.broker.image.brokers[1].log_dirs == (ids[DATA],)
        assert harness.node.broker.image.topics["t"].partitions[kept.partition].has_leader
        assert not harness.node.health()["ok"]
        assert await harness.offline_replicas() == {lost.partition: [1], kept.partition: []}

        harness.files.fault = None
        await harness.machine.stop()
        assert harness.files.exists(f"{DATA}/.kafka_cleanshutdown")
        assert not harness.files.exists(f"{SECOND_DATA}/.kafka_cleanshutdown")
        await harness.machine.until_up()
        await harness.cluster.close()
        assert await harness.read(lost) == 5 and await harness.read(kept) == 6
        assert await harness.send(lost) >= 5 and harness.node.health()["ok"]
        assert await harness.offline_replicas() == {0: [], 1: []}

    harness.run(main)


@pytest.mark.parametrize("how", ["read-only", "missing"])
def test_partitions_of_a_directory_that_is_read_only_or_missing_at_startup_are_offline(how: str) -> None:
    harness = NodeHarness(two_dirs=True)

    async def main() -> None:
        await harness.create(2)
        for partition in (T0, T1):
            await harness.send(partition, 5)
        await harness.until(lambda: not harness.node.broker.replicas.unassigned)
        lost, kept = (T0, T1) if harness.log_dir(T0) == SECOND_DATA else (T1, T0)
        await harness.machine.stop()
        if how == "missing":
            harness.files.rename(SECOND_DATA, "/elsewhere")
        else:
            harness.refuse(SECOND_DATA, errno.EROFS, "open", "create", "append", "remove", "rename")
        await harness.machine.until_up()
        await harness.cluster.close()
        assert await harness.read(kept) == 5 and await harness.send(kept) == 5
        assert harness.node.broker.replicas.offline() == [lost]
        with pytest.raises(KafkaError):
            harness.node.broker.replicas.get(*lost)
        assert not harness.node.broker.image.topics["t"].partitions[lost.partition].has_leader
        await harness.machine.stop()
        harness.files.fault = None
        if how == "missing":
            harness.files.rename("/elsewhere", SECOND_DATA)
        await harness.machine.until_up()
        await harness.cluster.close()
        assert await harness.read(lost) == 5 and await harness.send(lost) == 5

    harness.run(main)


def test_the_node_stops_when_its_only_directory_fails() -> None:
    harness = NodeHarness()

    async def main() -> None:
        await harness.create(1)
        await harness.send()
        harness.machine.excuse(True)
        boots = harness.machine.boots
        harness.refuse(f"{DATA}/t-0", errno.EIO, "append")
        with suppress(Disconnected):  # the response races with the shutdown
            assert await harness.refusal() is ErrorCode.KAFKA_STORAGE_ERROR
        await harness.machine.until(lambda: harness.machine.boots > boots)
        harness.files.fault = None
        await harness.machine.until_up()

    harness.run(main)


def test_a_full_disk_refuses_producers_serves_consumers_and_recovers() -> None:
    harness = NodeHarness()

    async def main() -> None:
        await harness.create(1, internal_segment_bytes="3000")
        sent = 0
        harness.files.capacity = harness.files.used() + 12_000
        with pytest.raises(KafkaError) as caught:
            while True:
                await harness.send(count=3)
                sent += 3
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR and sent > 10
        for _ in range(3):
            assert await harness.refusal() is ErrorCode.KAFKA_STORAGE_ERROR
            assert await harness.offset(T0, LATEST) == sent
        position = 0
        while position < sent:
            position = (await harness.fetch(T0, position)).next_offset
        health = harness.node.health()
        assert health["offline_partitions"] == [] and not health["ok"] and health["full_log_dirs"] == [DATA]
        assert health["problems"] == [f"the disk is full: producers are refused until there is space in {DATA}"]
        await asyncio.sleep(90)  # checkpoints and syncs hit the full disk, too
        assert not harness.node.health()["ok"]
        harness.files.capacity = None
        assert harness.node.health()["ok"]  # before any write: an orchestrator may have stopped routing producers here
        assert await harness.send(count=3) == sent
        await harness.machine.stop()
        await harness.machine.until_up()
        await harness.cluster.close()
        assert await harness.offset(T0, LATEST) == sent + 3

    harness.run(main)


def test_a_node_with_one_full_log_dir_of_two_is_healthy_and_reports_it() -> None:
    harness = NodeHarness(two_dirs=True)

    async def main() -> None:
        await harness.create(2)
        for partition in (T0, T1):
            await harness.send(partition, 5)
        full = T0 if harness.log_dir(T0) == SECOND_DATA else T1
        harness.refuse(SECOND_DATA, errno.EDQUOT, "append")
        assert await harness.refusal(full) is ErrorCode.KAFKA_STORAGE_ERROR
        assert harness.node.health()["full_log_dirs"] == [SECOND_DATA] and harness.node.health()["ok"]
        harness.files.fault = None
        await harness.send(full)
        assert harness.node.health()["full_log_dirs"] == []

    harness.run(main)


def test_retention_frees_space_on_a_full_disk() -> None:
    harness = NodeHarness({"log.retention.check.interval.ms": "1000"})

    async def main() -> None:
        await harness.create(
            1, internal_segment_bytes="2000", retention_bytes="4000", file_delete_delay_ms="2000", segment_ms="600000"
        )
        harness.files.capacity = harness.files.used() + 20_000
        sent = refused = 0
        while sent < 400:
            try:
                await harness.send(count=2)
                sent += 2
            except KafkaError as error:
                assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
                refused += 1
        assert refused > 0
        start = await harness.offset(T0, EARLIEST)
        assert start > 200 and await harness.offset(T0, LATEST) == sent
        log = harness.node.broker.replicas.get(*T0).log
        assert log.size < 16_000

    harness.run(main)


def test_retention_ms_deletes_old_segments_of_a_running_node() -> None:
    harness = NodeHarness(
        {"log.retention.check.interval.ms": "5000", "log.flush.start.offset.checkpoint.interval.ms": "1000"}
    )

    async def main() -> None:
        await harness.create(1, internal_segment_bytes="1000", retention_ms="60000", file_delete_delay_ms="10000")
        for _ in range(6):
            await harness.send(count=3)
            await asyncio.sleep(20)
        directory = f"{DATA}/t-0"
        start = await harness.offset(T0, EARLIEST)
        assert 0 < start < 18
        with pytest.raises(KafkaError) as caught:
            await harness.read(T0, start - 1)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        await asyncio.sleep(75)  # now even the active segment is too old
        assert await harness.offset(T0, EARLIEST) == 18
        await asyncio.sleep(12)
        assert [name for name in harness.names(directory) if name.endswith((".log", ".deleted"))] == [f"{18:020d}.log"]
        assert await harness.send() == 18
        harness.machine.kill()
        await harness.machine.until_up()
        await harness.cluster.close()
        assert await harness.offset(T0, EARLIEST) == 18 and await harness.read(T0, 18) == 1

    harness.run(main)


def test_deleted_records_stay_deleted_after_a_crash() -> None:
    harness = NodeHarness({"log.flush.start.offset.checkpoint.interval.ms": "1000"})

    async def main() -> None:
        await harness.create(1)
        await harness.send(count=10)
        assert harness.node.broker.replicas.get(*T0).delete_records(4, 0) == 4
        await asyncio.sleep(1.5)
        harness.machine.lose_power()
        await harness.machine.until_up()
        await harness.cluster.close()
        assert await harness.offset(T0, EARLIEST) == 4

    harness.run(main)


def test_records_flushed_by_flush_ms_survive_a_power_loss() -> None:
    harness = NodeHarness({"log.flush.scheduler.interval.ms": "100"})

    async def main() -> None:
        await harness.create(1, flush_ms="500")
        await harness.send(count=7)
        log = harness.node.broker.replicas.get(*T0).log
        assert log.recovery_point == 0
        await asyncio.sleep(1.2)
        assert log.recovery_point == 7
        harness.machine.lose_power()
        await harness.machine.until_up()
        await harness.cluster.close()
        assert await harness.read() == 7

    harness.run(main)


@pytest.mark.parametrize("seed", range(8))
def test_records_acknowledged_with_flush_messages_1_survive_a_power_loss(seed: int) -> None:
    harness = NodeHarness(seed=seed)

    async def main() -> None:
        await harness.create(1, flush_messages="1")
        acknowledged: list[int] = []

        async def send() -> None:
            with suppress(KafkaError, OSError):
                acknowledged.append(await harness.send(count=1 + seed % 3))

        sends = [asyncio.ensure_future(send()) for _ in range(1)]
        for _ in range(6):
            sends.append(asyncio.ensure_future(send()))
            await asyncio.sleep(0.004 * seed)
        harness.machine.lose_power()
        for one in sends:
            one.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        await harness.machine.until_up()
        await harness.cluster.close()
        assert await harness.offset(T0, LATEST) > max(acknowledged, default=-1)

    harness.run(main)


def test_concurrent_produce_requests_share_fsyncs() -> None:
    harness = NodeHarness()

    async def main() -> None:
        await harness.create(1, flush_messages="1")
        await harness.send()
        syncs: list[str] = []

        def count(operation: str, path: str) -> None:
            if operation == "sync" and path.startswith(f"{DATA}/t-0"):
                syncs.append(path)

        harness.files.fault = count
        connection = await harness.cluster.leader(T0)
        request = harness.request()
        produced: list[ProduceResponse] = await asyncio.gather(*(connection.request(request) for _ in range(20)))
        offsets = [response.responses[0].partition_responses[0].base_offset for response in produced]
        assert offsets == list(range(1, 21))  # in the order in which they were sent
        assert harness.node.broker.replicas.get(*T0).log.recovery_point == 21
        assert 0 < len(syncs) < 20

    harness.run(main)


def test_idle_producer_ids_expire() -> None:
    harness = NodeHarness({"producer.id.expiration.ms": "30000", "producer.id.expiration.check.interval.ms": "1000"})

    async def main() -> None:
        await harness.create(1)
        await harness.send()
        producers = harness.node.broker.replicas.get(*T0).log.producers
        await asyncio.sleep(25)
        assert len(producers) == 1
        await harness.send()
        await asyncio.sleep(25)
        assert len(producers) == 1
        await asyncio.sleep(10)
        assert len(producers) == 0

    harness.run(main)


def test_a_partition_that_a_full_disk_prevented_is_created_later() -> None:
    harness = NodeHarness()

    async def main() -> None:
        await harness.create(1)
        harness.refuse(f"{DATA}/u", errno.ENOSPC, "make_dir")
        topic = CreateTopicsRequest.CreatableTopic(name="u", num_partitions=1, replication_factor=1)
        response: CreateTopicsResponse = await harness.cluster.request(CreateTopicsRequest(topics=[topic]))
        assert response.topics[0].error_code == ErrorCode.NONE
        await harness.cluster.refresh(["u"])
        assert await harness.refusal(TopicPartition("u", 0)) is ErrorCode.KAFKA_STORAGE_ERROR
        harness.files.fault = None
        await asyncio.sleep(2)
        assert await harness.send(TopicPartition("u", 0)) == 0

    harness.run(main)
