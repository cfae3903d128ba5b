"""Partitions of a node with several directories: placement, failed directories, and what comes back after a restart."""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from replication_samples import NODE, NOW_MS, append
from testkit.simulator.disk import SimulatedFiles
from testkit.simulator.loop import SimulatedLoop

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition, Uuid
from headrace.metadata.image import TOPIC_CONFIG, UNASSIGNED, Image, Topic
from headrace.metadata.image import Partition as PartitionState
from headrace.metadata.loader import Changes
from headrace.options.table import LONG_MAX
from headrace.options.topic_options import topic_defaults
from headrace.replication.directories import Directories, StorageFailed
from headrace.replication.replicas import Replicas
from headrace.storage.checkpoints import LOG_START_CHECKPOINT, MetaProperties
from headrace.storage.log_dirs import LogDir, open_living_dirs

PATHS = ["/a", "/b", "/c"]
IDS = {path: Uuid(path.encode().ljust(16)) for path in PATHS}


class FixedClock:
    def now_ms(self) -> int:
        return NOW_MS


def make_disk() -> SimulatedFiles:
    files = SimulatedFiles(Random(0))
    for path in PATHS:
        files.make_dirs(path)
        log_dir = LogDir.open(files, path)
        log_dir.format(MetaProperties(cluster_id="c", node_id=NODE, directory_id=IDS[path]))
        log_dir.close()
    return files


def topic(name: str, count: int, directory: Uuid = UNASSIGNED, replicas: tuple[int, ...] = (NODE,)) -> Topic:
    state = PartitionState(replicas, (NODE,), NODE, 0, 0, (directory,) * len(replicas))
    return Topic(name, Uuid(name.encode().ljust(16)), (state,) * count)


class World:
    """Replicas on a simulated disk; each instance is one run of the node."""

    def __init__(self, files: SimulatedFiles, **options: Any) -> None:
        self.files = files
        self.loop = SimulatedLoop(Random(3))
        log_dirs, missing = open_living_dirs(files, PATHS, PATHS[0], node_id=NODE)
        for log_dir in log_dirs:
            log_dir.take_clean_shutdown()
        self.directories = Directories(log_dirs, PATHS[0], missing=missing, **options)
        self.replicas = Replicas(
            self.directories, NODE, lambda: topic_defaults({}), LONG_MAX, FixedClock(), Random(4), self.loop
        )
        self.image = Image()

    def publish(self, *topics: Topic, configs: dict[str, dict[str, str]] | None = None) -> None:
        new = Image(
            topics={one.name: one for one in topics},
            topic_names={one.id: one.name for one in topics},
            configs={(TOPIC_CONFIG, name): values for name, values in (configs or {}).items()},
        )
        gone = tuple((name, old.id) for name, old in self.image.topics.items() if name not in new.topics)
        self.replicas.publish(self.image, new, Changes(tuple(new.topics), gone, (), ()))
        self.image = new

    async def start(self, *topics: Topic) -> None:
        self.publish(*topics)
        await self.replicas.finish_loading()

    def directory(self, name: str, index: int = 0) -> str:
        return self.replicas.get(name, index).log.directory.rpartition("/")[0]

    def code(self, name: str, index: int = 0) -> ErrorCode:
        try:
            self.replicas.get(name, index).check_leader()
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def fail(self, path: str, *operations: str, number: int = errno.EIO) -> None:
        def refuse(operation: str, used: str) -> OSError | None:
            if used.startswith(path) and operation in operations:
                return OSError(number, "refused", used)
            return None

        self.files.fault = refuse


def run(world: World, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    world.loop.run_until_complete(main())
    world.loop.close()
    world.files.process_crash()


def test_new_partitions_go_where_the_fewest_are() -> None:
    world = World(make_disk())

    async def main() -> None:
        await world.start()
        world.publish(topic("t", 30))
        await world.replicas.settle()
        places = [world.directory("t", index) for index in range(30)]
        assert {path: places.count(path) for path in PATHS} == dict.fromkeys(PATHS, 10)
        world.publish(topic("t", 30), topic("u", 1, IDS["/b"]))  # the controller chose the directory
        await world.replicas.settle()
        assert world.directory("u") == "/b"
        world.publish(topic("t", 30), topic("u", 1, IDS["/b"]), topic("v", 2))
        await world.replicas.settle()
        assert [world.directory("v", index) for index in range(2)] == ["/a", "/c"]

    run(world, main)


def test_cordoned_directories_take_nothing_new() -> None:
    world = World(make_disk(), cordoned=["/a", "/c"])

    async def main() -> None:
        await world.start()
        world.publish(topic("t", 4))
        await world.replicas.settle()
        assert {world.directory("t", index) for index in range(4)} == {"/b"}
        assert world.directories.cordoned_ids() == [IDS["/a"], IDS["/c"]]

    run(world, main)


def test_replicas_that_lie_elsewhere_than_metadata_says_are_told() -> None:
    world = World(make_disk())
    woken: list[bool] = []
    world.replicas.on_unassigned = lambda: woken.append(True)

    async def main() -> None:
        await world.start()
        world.publish(topic("t", 1))
        await world.replicas.settle()
        where = IDS[world.directory("t")]
        assert world.replicas.unassigned == {TopicPartition("t", 0): (topic("t", 1).id, where)} and woken == [True]
        world.publish(topic("t", 1, where))
        await world.replicas.settle()
        assert world.replicas.unassigned == {}

    run(world, main)


@pytest.mark.parametrize("operation, number", [("append", errno.EIO), ("append", errno.EROFS), ("sync", errno.EIO)])
def test_a_directory_that_fails_takes_its_partitions_and_no_others(operation: str, number: int) -> None:
    world = World(make_disk())
    told: list[bool] = []
    world.replicas.on_directory_failed = lambda: told.append(True)

    async def main() -> None:
        await world.start()
        world.publish(topic("t", 6))
        await world.replicas.settle()
        mine = [index for index in range(6) if world.directory("t", index) == "/b"]
        assert len(mine) == 2
        for index in range(6):
            append(world.replicas.get("t", index))
        world.fail("/b", operation, number=number)
        partition = world.replicas.get("t", mine[0])
        if operation == "append":
            with pytest.raises(KafkaError):
                append(partition)
        else:
            assert partition.commit is not None
            error = await partition.commit.sync()
            assert error is not None and error.code is ErrorCode.KAFKA_STORAGE_ERROR
        for index in range(6):
            expected = ErrorCode.KAFKA_STORAGE_ERROR if index in mine else ErrorCode.NONE
            assert world.code("t", index) is expected
        assert sorted(world.replicas.offline()) == [TopicPartition("t", index) for index in mine]
        assert world.directories.offline_ids() == [IDS["/b"]] and told == [True]
        assert not world.replicas.failed.done()
        world.publish(topic("t", 6), topic("u", 6))  # new partitions avoid the failed directory
        await world.replicas.settle()
        assert {world.directory("u", index) for index in range(6)} == {"/a", "/c"}
        assert [log_dir.path for log_dir, _ in world.replicas.checkpoint()()] == []
        world.files.fault = None
        assert [log_dir.path for log_dir in await world.replicas.close()] == ["/a", "/c"]

    run(world, main)


@pytest.mark.parametrize("failing", [["/a"], ["/b", "/c", "/a"]])
def test_without_the_metadata_or_any_directory_the_node_stops(failing: list[str]) -> None:
    world = World(make_disk())

    async def main() -> None:
        await world.start()
        for path in failing:
            assert not world.replicas.failed.done()
            log_dir = next(one for one in world.directories.all() if one.path == path)
            world.replicas.fail_directory(log_dir, OSError(errno.EIO, "gone"))
        with pytest.raises(StorageFailed, match="/a has failed"):
            world.replicas.failed.result()

    run(world, main)


def written(files: SimulatedFiles) -> dict[int, str]:
    """Run a node once with three partitions, one in each directory; return the directory of each."""
    world = World(files)
    places: dict[int, str] = {}

    async def main() -> None:
        await world.start()
        world.publish(topic("t", 3))
        await world.replicas.settle()
        for index in range(3):
            append(world.replicas.get("t", index), 4)
            world.replicas.get("t", index).delete_records(2, NOW_MS)
            places[index] = world.directory("t", index)
        for log_dir in await world.replicas.close():
            log_dir.mark_clean_shutdown(1)

    run(world, main)
    return places


def test_a_directory_that_is_missing_at_the_start_keeps_its_partitions_offline_and_they_come_back_with_it() -> None:
    files = make_disk()
    places = written(files)
    assert sorted(places.values()) == PATHS
    states = [PartitionState((NODE,), (NODE,), NODE, 0, 0, (IDS[places[index]],)) for index in range(3)]
    known = Topic("t", topic("t", 1).id, tuple(states))
    files.rename("/c", "/unmounted")
    world = World(files)
    lost = next(index for index, path in places.items() if path == "/c")

    async def without() -> None:
        await world.start(known)
        assert [world.code("t", index) for index in range(3)].count(ErrorCode.NONE) == 2
        assert world.code("t", lost) is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError, match="bring it back, or delete the topic"):
            world.replicas.get("t", lost)
        assert not any(files.exists(f"{path}/t-{lost}") for path in PATHS)
        world.publish(known, topic("u", 2))  # new topics are still created
        await world.replicas.settle()
        assert world.code("u") is ErrorCode.NONE
        await world.replicas.close()

    run(world, without)
    files.rename("/unmounted", "/c")
    again = World(files)

    async def with_it() -> None:
        await again.start(known, topic("u", 2))
        for index in range(3):
            log = again.replicas.get("t", index).log
            assert (log.log_start, log.log_end) == (2, 4)

    run(again, with_it)


def test_an_empty_disk_in_the_place_of_a_lost_one_is_not_taken_for_it() -> None:
    files = make_disk()
    places = written(files)
    lost = next(index for index, path in places.items() if path == "/c")
    states = [PartitionState((NODE,), (NODE,), NODE, 0, 0, (IDS[places[index]],)) for index in range(3)]
    files.rename("/c", "/old")
    files.make_dirs("/c")
    fresh = LogDir.open(files, "/c")
    fresh.format(MetaProperties(cluster_id="c", node_id=NODE, directory_id=Uuid(b"new".ljust(16))))
    fresh.close()
    world = World(files)

    async def main() -> None:
        await world.start(Topic("t", topic("t", 1).id, tuple(states)))
        assert world.code("t", lost) is ErrorCode.KAFKA_STORAGE_ERROR
        world.publish()  # delete the topic and create it again
        world.publish(topic("t", 3))
        await world.replicas.settle()
        assert world.code("t", lost) is ErrorCode.NONE

    run(world, main)


def test_a_log_that_cannot_be_opened_keeps_its_checkpoints_and_its_directory_is_not_marked_clean() -> None:
    files = make_disk()
    places = written(files)
    lost = next(index for index, path in places.items() if path == "/b")
    world = World(files)
    world.fail(f"/b/t-{lost}", "open")

    async def main() -> None:
        await world.start(topic("t", 3))
        assert world.code("t", lost) is ErrorCode.KAFKA_STORAGE_ERROR
        assert [world.code("t", index) for index in range(3) if index != lost] == [ErrorCode.NONE] * 2
        world.files.fault = None
        assert [log_dir.path for log_dir in await world.replicas.close()] == ["/a", "/c"]
        assert world.directories.all()[1].load_offsets(LOG_START_CHECKPOINT) == {TopicPartition("t", lost): 2}

    run(world, main)


def test_a_partition_that_found_no_room_is_made_when_there_is_some() -> None:
    world = World(make_disk())

    async def main() -> None:
        await world.start()
        world.fail("/", "make_dir", "create", "append", number=errno.ENOSPC)
        world.publish(topic("t", 2))
        await world.replicas.settle()
        assert [world.code("t", index) for index in range(2)] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert world.directories.offline_ids() == []
        world.replicas.retry_broken()
        await world.replicas.settle()
        assert world.code("t") is ErrorCode.KAFKA_STORAGE_ERROR
        world.files.fault = None
        world.replicas.retry_broken()
        await world.replicas.settle()
        assert [world.code("t", index) for index in range(2)] == [ErrorCode.NONE] * 2

    run(world, main)


def test_options_of_a_topic_reach_its_running_log() -> None:
    world = World(make_disk())

    async def main() -> None:
        await world.start()
        world.publish(topic("t", 1))
        await world.replicas.settle()
        partition = world.replicas.get("t", 0)
        assert not partition.waits_for_disk
        options = {
            "segment.bytes": "2000000",
            "segment.ms": "77000",
            "retention.ms": "1",
            "retention.bytes": "5",
            "flush.messages": "1",
            "flush.ms": "9",
            "index.interval.bytes": "11",
            "max.message.bytes": "1234",
            "message.timestamp.type": "LogAppendTime",
            "message.timestamp.after.max.ms": "5",
            "cleanup.policy": "compact,delete",
            "file.delete.delay.ms": "3",
        }
        world.publish(topic("t", 1), configs={"t": options})
        await world.replicas.settle()
        config = partition.log.config
        assert (config.segment_bytes, config.segment_ms, config.retention_ms) == (2_000_000, 77_000, 1)
        assert (config.retention_bytes, config.flush_messages, config.flush_ms) == (5, 1, 9)
        assert (config.index_interval_bytes, config.max_message_bytes, config.file_delete_delay_ms) == (11, 1234, 3)
        assert partition.log.segments.active.roll_after_ms == 77_000
        assert partition.requires_keys and partition.waits_for_disk and partition.after_max_ms == 5
        info = append(partition)
        assert info.log_append_time == NOW_MS
        flush = partition.flushed(info.last_offset)
        assert flush is not None and await flush is None
        world.publish(topic("t", 1))
        await world.replicas.settle()
        assert not partition.waits_for_disk and partition.log.config.retention_ms == 604_800_000

    run(world, main)


def test_what_metadata_expects_in_a_living_directory_may_lie_in_a_missing_one() -> None:
    """Guard against seed 226: metadata knew a move's target, the node died before the log was there, the source was gone."""
    files = make_disk()
    files.remove("/b")
    world = World(files)

    async def main() -> None:
        await world.start(topic("moved", 1, IDS["/a"]))
        assert world.code("moved") is ErrorCode.KAFKA_STORAGE_ERROR and not files.exists("/a/moved-0")
        world.publish(topic("moved", 1, IDS["/a"]), topic("new", 1, IDS["/a"]))
        await world.replicas.settle()
        assert world.directory("new") == "/a"

    run(world, main)
