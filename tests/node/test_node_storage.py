"""A whole node on simulated disks, in virtual time: failed and full directories, retention, flushes and expiry."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress

import pytest
from node_world import T0, T1, World
from testkit.simulator.machine import DATA, SECOND_DATA

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.list_offsets import EARLIEST, LATEST
from headrace.client.wire.connection import Disconnected
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.produce import ProduceResponse


@pytest.mark.parametrize("operations, number", [(("append",), errno.EIO), (("append", "sync", "create"), errno.EROFS)])
def test_a_disk_that_fails_in_mid_write_takes_its_partitions_and_comes_back_after_a_restart(
    operations: tuple[str, ...], number: int
) -> None:
    world = World(two_dirs=True)

    async def main() -> None:
        await world.create(2)
        for partition in (T0, T1):
            await world.send(partition, 5)
        lost, kept = (T0, T1) if world.place(T0) == SECOND_DATA else (T1, T0)
        assert {world.place(lost), world.place(kept)} == {DATA, SECOND_DATA}
        # The metadata log records the directory of each replica.
        ids = {d.path: d.meta.directory_id for d in world.node.broker.replicas.directories.all() if d.meta}
        await world.until(lambda: not world.node.broker.replicas.unassigned)
        image = world.node.broker.image
        assert image.topics["t"].partitions[lost.partition].directories == (ids[SECOND_DATA],)

        world.refuse(SECOND_DATA, number, *operations)
        assert await world.refusal(lost) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await world.send(kept) == 5
        assert await world.read(kept) == 6
        assert world.node.broker.replicas.offline() == [lost]
        # The controller knows: the partition has no leader, and the broker has lost the directory.
        await world.until(lambda: not world.node.broker.image.topics["t"].partitions[lost.partition].has_leader)
        assert world.node.broker.image.brokers[1].log_dirs == (ids[DATA],)
        assert world.node.broker.image.topics["t"].partitions[kept.partition].has_leader
        assert not world.node.health()["ok"]
        assert await world.offline_replicas() == {lost.partition: [1], kept.partition: []}

        world.files.fault = None
        await world.machine.stop()
        assert world.files.exists(f"{DATA}/.kafka_cleanshutdown")
        assert not world.files.exists(f"{SECOND_DATA}/.kafka_cleanshutdown")
        await world.machine.until_up()
        await world.cluster.close()
        assert await world.read(lost) == 5 and await world.read(kept) == 6
        assert await world.send(lost) >= 5 and world.node.health()["ok"]
        assert await world.offline_replicas() == {0: [], 1: []}

    world.run(main)


@pytest.mark.parametrize("how", ["read-only", "missing"])
def test_a_directory_that_is_read_only_or_missing_at_the_start_leaves_its_partitions_offline(how: str) -> None:
    world = World(two_dirs=True)

    async def main() -> None:
        await world.create(2)
        for partition in (T0, T1):
            await world.send(partition, 5)
        await world.until(lambda: not world.node.broker.replicas.unassigned)
        lost, kept = (T0, T1) if world.place(T0) == SECOND_DATA else (T1, T0)
        await world.machine.stop()
        if how == "missing":
            world.files.rename(SECOND_DATA, "/elsewhere")
        else:
            world.refuse(SECOND_DATA, errno.EROFS, "open", "create", "append", "remove", "rename")
        await world.machine.until_up()
        await world.cluster.close()
        assert await world.read(kept) == 5 and await world.send(kept) == 5
        assert world.node.broker.replicas.offline() == [lost]
        with pytest.raises(KafkaError):
            world.node.broker.replicas.get(*lost)
        assert not world.node.broker.image.topics["t"].partitions[lost.partition].has_leader
        await world.machine.stop()
        world.files.fault = None
        if how == "missing":
            world.files.rename("/elsewhere", SECOND_DATA)
        await world.machine.until_up()
        await world.cluster.close()
        assert await world.read(lost) == 5 and await world.send(lost) == 5

    world.run(main)


def test_without_its_only_directory_the_node_stops() -> None:
    world = World()

    async def main() -> None:
        await world.create(1)
        await world.send()
        world.machine.excuse(True)
        boots = world.machine.boots
        world.refuse(f"{DATA}/t-0", errno.EIO, "append")
        with suppress(Disconnected):  # the response races with the shutdown
            assert await world.refusal() is ErrorCode.KAFKA_STORAGE_ERROR
        await world.machine.until(lambda: world.machine.boots > boots)
        world.files.fault = None
        await world.machine.until_up()

    world.run(main)


def test_a_disk_that_fills_up_refuses_producers_serves_consumers_and_is_used_again() -> None:
    world = World()

    async def main() -> None:
        await world.create(1, internal_segment_bytes="3000")
        sent = 0
        world.files.capacity = world.files.used() + 12_000
        with pytest.raises(KafkaError) as caught:
            while True:
                await world.send(count=3)
                sent += 3
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR and sent > 10
        for _ in range(3):
            assert await world.refusal() is ErrorCode.KAFKA_STORAGE_ERROR
            assert await world.offset(T0, LATEST) == sent
        position = 0
        while position < sent:
            position = (await world.fetch(T0, position)).next_offset
        health = world.node.health()
        assert health["offline_partitions"] == [] and not health["ok"] and health["full_log_dirs"] == [DATA]
        assert health["problems"] == [f"the disk is full: producers are refused until there is space in {DATA}"]
        await asyncio.sleep(90)  # checkpoints and syncs hit the full disk, too
        assert not world.node.health()["ok"]
        world.files.capacity = None
        assert world.node.health()["ok"]  # before any write: an orchestrator may have stopped routing producers here
        assert await world.send(count=3) == sent
        await world.machine.stop()
        await world.machine.until_up()
        await world.cluster.close()
        assert await world.offset(T0, LATEST) == sent + 3

    world.run(main)


def test_a_node_with_space_in_one_of_its_log_dirs_is_healthy_and_names_the_full_one() -> None:
    world = World(two_dirs=True)

    async def main() -> None:
        await world.create(2)
        for partition in (T0, T1):
            await world.send(partition, 5)
        full = T0 if world.place(T0) == SECOND_DATA else T1
        world.refuse(SECOND_DATA, errno.EDQUOT, "append")
        assert await world.refusal(full) is ErrorCode.KAFKA_STORAGE_ERROR
        assert world.node.health()["full_log_dirs"] == [SECOND_DATA] and world.node.health()["ok"]
        world.files.fault = None
        await world.send(full)
        assert world.node.health()["full_log_dirs"] == []

    world.run(main)


def test_retention_makes_the_room_that_a_full_disk_needs() -> None:
    world = World({"log.retention.check.interval.ms": "1000"})

    async def main() -> None:
        await world.create(
            1, internal_segment_bytes="2000", retention_bytes="4000", file_delete_delay_ms="2000", segment_ms="600000"
        )
        world.files.capacity = world.files.used() + 20_000
        sent = refused = 0
        while sent < 400:
            try:
                await world.send(count=2)
                sent += 2
            except KafkaError as error:
                assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
                refused += 1
        assert refused > 0
        start = await world.offset(T0, EARLIEST)
        assert start > 200 and await world.offset(T0, LATEST) == sent
        log = world.node.broker.replicas.get(*T0).log
        assert log.size < 16_000

    world.run(main)


def test_retention_by_time_on_a_running_node() -> None:
    world = World({"log.retention.check.interval.ms": "5000", "log.flush.start.offset.checkpoint.interval.ms": "1000"})

    async def main() -> None:
        await world.create(1, internal_segment_bytes="1000", retention_ms="60000", file_delete_delay_ms="10000")
        for _ in range(6):
            await world.send(count=3)
            await asyncio.sleep(20)
        directory = f"{DATA}/t-0"
        start = await world.offset(T0, EARLIEST)
        assert 0 < start < 18
        with pytest.raises(KafkaError) as caught:
            await world.read(T0, start - 1)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        await asyncio.sleep(75)  # now even the active segment is too old
        assert await world.offset(T0, EARLIEST) == 18
        await asyncio.sleep(12)
        assert [name for name in world.names(directory) if name.endswith((".log", ".deleted"))] == [f"{18:020d}.log"]
        assert await world.send() == 18
        world.machine.kill()
        await world.machine.until_up()
        await world.cluster.close()
        assert await world.offset(T0, EARLIEST) == 18 and await world.read(T0, 18) == 1

    world.run(main)


def test_deleted_records_stay_deleted_after_a_crash() -> None:
    world = World({"log.flush.start.offset.checkpoint.interval.ms": "1000"})

    async def main() -> None:
        await world.create(1)
        await world.send(count=10)
        assert world.node.broker.replicas.get(*T0).delete_records(4, 0) == 4
        await asyncio.sleep(1.5)
        world.machine.lose_power()
        await world.machine.until_up()
        await world.cluster.close()
        assert await world.offset(T0, EARLIEST) == 4

    world.run(main)


def test_flush_ms_brings_records_to_the_disk_in_time() -> None:
    world = World({"log.flush.scheduler.interval.ms": "100"})

    async def main() -> None:
        await world.create(1, flush_ms="500")
        await world.send(count=7)
        log = world.node.broker.replicas.get(*T0).log
        assert log.recovery_point == 0
        await asyncio.sleep(1.2)
        assert log.recovery_point == 7
        world.machine.lose_power()
        await world.machine.until_up()
        await world.cluster.close()
        assert await world.read() == 7

    world.run(main)


@pytest.mark.parametrize("seed", range(8))
def test_every_record_that_flush_messages_acknowledged_survives_a_power_loss(seed: int) -> None:
    world = World(seed=seed)

    async def main() -> None:
        await world.create(1, flush_messages="1")
        acknowledged: list[int] = []

        async def send() -> None:
            with suppress(KafkaError, OSError):
                acknowledged.append(await world.send(count=1 + seed % 3))

        sends = [asyncio.ensure_future(send()) for _ in range(1)]
        for _ in range(6):
            sends.append(asyncio.ensure_future(send()))
            await asyncio.sleep(0.004 * seed)
        world.machine.lose_power()
        for one in sends:
            one.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        await world.machine.until_up()
        await world.cluster.close()
        assert await world.offset(T0, LATEST) > max(acknowledged, default=-1)

    world.run(main)


def test_one_fsync_serves_many_producers() -> None:
    world = World()

    async def main() -> None:
        await world.create(1, flush_messages="1")
        await world.send()
        syncs: list[str] = []

        def count(operation: str, path: str) -> None:
            if operation == "sync" and path.startswith(f"{DATA}/t-0"):
                syncs.append(path)

        world.files.fault = count  # type: ignore[assignment]
        connection = await world.cluster.leader(T0)
        request = world.request()
        answers: list[ProduceResponse] = await asyncio.gather(*(connection.request(request) for _ in range(20)))
        offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
        assert offsets == list(range(1, 21))  # in the order in which they were sent
        assert world.node.broker.replicas.get(*T0).log.recovery_point == 21
        assert 0 < len(syncs) < 20

    world.run(main)


def test_producers_that_are_silent_for_long_are_forgotten() -> None:
    world = World({"producer.id.expiration.ms": "30000", "producer.id.expiration.check.interval.ms": "1000"})

    async def main() -> None:
        await world.create(1)
        await world.send()
        producers = world.node.broker.replicas.get(*T0).log.producers
        await asyncio.sleep(25)
        assert len(producers) == 1
        await world.send()
        await asyncio.sleep(25)
        assert len(producers) == 1
        await asyncio.sleep(10)
        assert len(producers) == 0

    world.run(main)


def test_partitions_that_found_no_room_are_made_later() -> None:
    world = World()

    async def main() -> None:
        await world.create(1)
        world.refuse(f"{DATA}/u", errno.ENOSPC, "make_dir")
        topic = CreateTopicsRequest.CreatableTopic(name="u", num_partitions=1, replication_factor=1)
        answer: CreateTopicsResponse = await world.cluster.request(CreateTopicsRequest(topics=[topic]))
        assert answer.topics[0].error_code == ErrorCode.NONE
        await world.cluster.refresh(["u"])
        assert await world.refusal(TopicPartition("u", 0)) is ErrorCode.KAFKA_STORAGE_ERROR
        world.files.fault = None
        await asyncio.sleep(2)
        assert await world.send(TopicPartition("u", 0)) == 0

    world.run(main)
