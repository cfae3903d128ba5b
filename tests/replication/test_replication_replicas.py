"""Partitions of a node with several directories: placement, failed directories, and what comes back after a restart."""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from testkit.simulator.disk import SimulatedFiles
from testkit.simulator.loop import SimulatedLoop
from tests.fakes import FakeClock
from tests.replication.replication_samples import NODE, NOW_MS, append

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition, Uuid
from headrace.metadata.image import TOPIC_CONFIG, UNASSIGNED, Image, Topic
from headrace.metadata.image import Partition as PartitionState
from headrace.metadata.loader import Changes
from headrace.options.table import LONG_MAX
from headrace.options.topic_options import topic_defaults
from headrace.replication import replicas as replicas_module
from headrace.replication.directories import Directories, StorageFailed
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas
from headrace.storage.checkpoints import LOG_START_CHECKPOINT, MetaProperties
from headrace.storage.log_dirs import LogDir, open_usable_log_dirs
from headrace.storage.partition_metadata import PARTITION_METADATA

PATHS = ["/a", "/b", "/c"]
IDS = {path: Uuid(path.encode().ljust(16)) for path in PATHS}


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


class ReplicasHarness:
    """Replicas on a simulated disk; each instance is one run of the node."""

    def __init__(self, files: SimulatedFiles, **options: Any) -> None:
        self.files = files
        self.loop = SimulatedLoop(Random(3))
        log_dirs, missing = open_usable_log_dirs(files, PATHS, PATHS[0], node_id=NODE)
        for log_dir in log_dirs:
            log_dir.take_clean_shutdown()
        self.directories = Directories(log_dirs, PATHS[0], missing=missing, **options)
        self.replicas = Replicas(
            self.directories, NODE, lambda: topic_defaults({}), LONG_MAX, FakeClock(NOW_MS), Random(4), self.loop
        )
        self.image = Image()

    def publish(self, *topics: Topic, configs: dict[str, dict[str, str]] | None = None) -> None:
        new = Image(
            topics={one.name: one for one in topics},
            topic_names={one.id: one.name for one in topics},
            configs={(TOPIC_CONFIG, name): values for name, values in (configs or {}).items()},
        )
        gone = tuple((name, old.id) for name, old in self.image.topics.items() if name not in new.topics)
        configured = tuple({**self.image.configs, **new.configs})
        partitions = tuple(TopicPartition(one.name, index) for one in topics for index in range(len(one.partitions)))
        self.replicas.publish(self.image, new, Changes(tuple(new.topics), gone, (), configured, partitions))
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


def run(harness: ReplicasHarness, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    harness.loop.run_until_complete(main())
    harness.loop.close()
    harness.files.process_crash()


def test_new_partitions_are_placed_in_the_directory_with_the_fewest_partitions() -> None:
    harness = ReplicasHarness(make_disk())

    async def main() -> None:
        await harness.start()
        harness.publish(topic("t", 30))
        await harness.replicas.settle()
        places = [harness.directory("t", index) for index in range(30)]
        assert {path: places.count(path) for path in PATHS} == dict.fromkeys(PATHS, 10)
        harness.publish(topic("t", 30), topic("u", 1, IDS["/b"]))  # the controller chose the directory
        await harness.replicas.settle()
        assert harness.directory("u") == "/b"
        harness.publish(topic("t", 30), topic("u", 1, IDS["/b"]), topic("v", 2))
        await harness.replicas.settle()
        assert [harness.directory("v", index) for index in range(2)] == ["/a", "/c"]

    run(harness, main)


def test_cordoned_directories_get_no_new_partitions() -> None:
    harness = ReplicasHarness(make_disk(), cordoned=["/a", "/c"])

    async def main() -> None:
        await harness.start()
        harness.publish(topic("t", 4))
        await harness.replicas.settle()
        assert {harness.directory("t", index) for index in range(4)} == {"/b"}
        assert harness.directories.cordoned_ids() == [IDS["/a"], IDS["/c"]]

    run(harness, main)


def test_replicas_whose_directory_differs_from_the_metadata_are_listed_as_unassigned() -> None:
    harness = ReplicasHarness(make_disk())
    wakeups: list[bool] = []
    harness.replicas.on_unassigned = lambda: wakeups.append(True)

    async def main() -> None:
        await harness.start()
        harness.publish(topic("t", 1))
        await harness.replicas.settle()
        where = IDS[harness.directory("t")]
        assert harness.replicas.unassigned == {TopicPartition("t", 0): (topic("t", 1).id, where)} and wakeups == [True]
        harness.publish(topic("t", 1, where))
        await harness.replicas.settle()
        assert harness.replicas.unassigned == {}

    run(harness, main)


@pytest.mark.parametrize("operation, number", [("append", errno.EIO), ("append", errno.EROFS), ("sync", errno.EIO)])
def test_a_failed_directory_takes_only_its_own_partitions_offline(operation: str, number: int) -> None:
    harness = ReplicasHarness(make_disk())
    notifications: list[bool] = []
    harness.replicas.on_directory_failed = lambda: notifications.append(True)

    async def main() -> None:
        await harness.start()
        harness.publish(topic("t", 6))
        await harness.replicas.settle()
        affected = [index for index in range(6) if harness.directory("t", index) == "/b"]
        assert len(affected) == 2
        for index in range(6):
            append(harness.replicas.get("t", index))
        harness.fail("/b", operation, number=number)
        partition = harness.replicas.get("t", affected[0])
        if operation == "append":
            with pytest.raises(KafkaError):
                append(partition)
        else:
            assert partition.commit is not None
            error = await partition.commit.sync()
            assert error is not None and error.code is ErrorCode.KAFKA_STORAGE_ERROR
        for index in range(6):
            expected = ErrorCode.KAFKA_STORAGE_ERROR if index in affected else ErrorCode.NONE
            assert harness.code("t", index) is expected
        assert sorted(harness.replicas.offline()) == [TopicPartition("t", index) for index in affected]
        assert harness.directories.offline_ids() == [IDS["/b"]] and notifications == [True]
        assert not harness.replicas.failed.done()
        harness.publish(topic("t", 6), topic("u", 6))  # new partitions avoid the failed directory
        await harness.replicas.settle()
        assert {harness.directory("u", index) for index in range(6)} == {"/a", "/c"}
        assert [log_dir.path for log_dir, _ in harness.replicas.checkpoint()()] == []
        harness.files.fault = None
        assert [log_dir.path for log_dir in await harness.replicas.close()] == ["/a", "/c"]

    run(harness, main)


@pytest.mark.parametrize("failing", [["/a"], ["/b", "/c", "/a"]])
def test_losing_the_metadata_directory_or_all_directories_stops_the_node(failing: list[str]) -> None:
    harness = ReplicasHarness(make_disk())

    async def main() -> None:
        await harness.start()
        for path in failing:
            assert not harness.replicas.failed.done()
            log_dir = next(one for one in harness.directories.all() if one.path == path)
            harness.replicas.fail_directory(log_dir, OSError(errno.EIO, "gone"))
        with pytest.raises(StorageFailed, match="/a has failed"):
            harness.replicas.failed.result()

    run(harness, main)


def write_three_partitions(files: SimulatedFiles) -> dict[int, str]:
    """Run a node once with three partitions, one in each directory; return the directory of each."""
    harness = ReplicasHarness(files)
    places: dict[int, str] = {}

    async def main() -> None:
        await harness.start()
        harness.publish(topic("t", 3))
        await harness.replicas.settle()
        for index in range(3):
            append(harness.replicas.get("t", index), 4)
            harness.replicas.get("t", index).delete_records(2, NOW_MS)
            places[index] = harness.directory("t", index)
        for log_dir in await harness.replicas.close():
            log_dir.mark_clean_shutdown(1)

    run(harness, main)
    return places


def test_partitions_of_a_missing_directory_are_offline_until_a_restart_with_it() -> None:
    files = make_disk()
    places = write_three_partitions(files)
    assert sorted(places.values()) == PATHS
    states = [PartitionState((NODE,), (NODE,), NODE, 0, 0, (IDS[places[index]],)) for index in range(3)]
    known = Topic("t", topic("t", 1).id, tuple(states))
    files.rename("/c", "/unmounted")
    harness = ReplicasHarness(files)
    lost = next(index for index, path in places.items() if path == "/c")

    async def start_without_directory() -> None:
        await harness.start(known)
        assert [harness.code("t", index) for index in range(3)].count(ErrorCode.NONE) == 2
        assert harness.code("t", lost) is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError, match="restore the directory, or delete the topic"):
            harness.replicas.get("t", lost)
        assert not any(files.exists(f"{path}/t-{lost}") for path in PATHS)
        harness.publish(known, topic("u", 2))  # new topics are still created
        await harness.replicas.settle()
        assert harness.code("u") is ErrorCode.NONE
        await harness.replicas.close()

    run(harness, start_without_directory)
    files.rename("/unmounted", "/c")
    again = ReplicasHarness(files)

    async def start_with_directory() -> None:
        await again.start(known, topic("u", 2))
        for index in range(3):
            log = again.replicas.get("t", index).log
            assert (log.log_start, log.log_end) == (2, 4)

    run(again, start_with_directory)


def test_partitions_of_a_lost_disk_stay_offline_after_an_empty_one_replaces_it() -> None:
    files = make_disk()
    places = write_three_partitions(files)
    lost = next(index for index, path in places.items() if path == "/c")
    states = [PartitionState((NODE,), (NODE,), NODE, 0, 0, (IDS[places[index]],)) for index in range(3)]
    files.rename("/c", "/old")
    files.make_dirs("/c")
    fresh = LogDir.open(files, "/c")
    fresh.format(MetaProperties(cluster_id="c", node_id=NODE, directory_id=Uuid(b"new".ljust(16))))
    fresh.close()
    harness = ReplicasHarness(files)

    async def main() -> None:
        await harness.start(Topic("t", topic("t", 1).id, tuple(states)))
        assert harness.code("t", lost) is ErrorCode.KAFKA_STORAGE_ERROR
        harness.publish()  # delete the topic and create it again
        harness.publish(topic("t", 3))
        await harness.replicas.settle()
        assert harness.code("t", lost) is ErrorCode.NONE

    run(harness, main)


def test_a_log_that_fails_to_open_keeps_its_checkpoint_and_its_directory_is_not_clean() -> None:
    files = make_disk()
    places = write_three_partitions(files)
    lost = next(index for index, path in places.items() if path == "/b")
    harness = ReplicasHarness(files)
    harness.fail(f"/b/t-{lost}", "open")

    async def main() -> None:
        await harness.start(topic("t", 3))
        assert harness.code("t", lost) is ErrorCode.KAFKA_STORAGE_ERROR
        assert [harness.code("t", index) for index in range(3) if index != lost] == [ErrorCode.NONE] * 2
        harness.files.fault = None
        assert [log_dir.path for log_dir in await harness.replicas.close()] == ["/a", "/c"]
        assert harness.directories.all()[1].load_offsets(LOG_START_CHECKPOINT) == {TopicPartition("t", lost): 2}

    run(harness, main)


def recreated(old: Topic) -> Topic:
    """Return a topic with the same name and another id."""
    return Topic(old.name, Uuid(b"new".ljust(16)), old.partitions)


def write_deleted_records(files: SimulatedFiles, *topics: Topic) -> None:
    """Leave checkpoints of partitions whose first 5 records were deleted."""
    harness = ReplicasHarness(files)

    async def main() -> None:
        await harness.start(*topics)
        for one in topics:
            partition = harness.replicas.get(one.name, 0)
            append(partition, 5)
            partition.delete_records(5, NOW_MS)
        await harness.loop.run_in_executor(None, harness.replicas.checkpoint())

    run(harness, main)


def test_checkpoints_of_a_deleted_topic_do_not_apply_to_a_new_one_of_the_same_name_after_a_crash() -> None:
    files, old = make_disk(), topic("t", 1)
    write_deleted_records(files, old)
    second = ReplicasHarness(files)

    async def delete_and_create() -> None:
        await second.start(old)
        second.publish()
        await second.replicas.settle()
        second.publish(recreated(old))
        await second.replicas.settle()
        append(second.replicas.get("t", 0), 2)

    run(second, delete_and_create)
    third = ReplicasHarness(files)

    async def check() -> None:
        await third.start(recreated(old))
        log = third.replicas.get("t", 0).log
        assert (log.log_start, log.log_end) == (0, 2)

    run(third, check)


def test_checkpoints_of_a_topic_that_was_recreated_while_the_node_was_down_do_not_apply_after_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        replicas_module, "OPENED_AT_ONCE", 1
    )  # some logs are not open yet when the first one is created
    files, old, others = make_disk(), topic("t", 1), [topic(name, 1) for name in ("u", "v")]
    write_deleted_records(files, old, *others)
    second = ReplicasHarness(files)

    async def create() -> None:
        await second.start(recreated(old), *others)
        append(second.replicas.get("t", 0), 2)

    run(second, create)
    third = ReplicasHarness(files)

    async def check() -> None:
        await third.start(recreated(old), *others)
        offsets = {name: third.replicas.get(name, 0).log for name in ("t", "u", "v")}
        assert {name: (log.log_start, log.log_end) for name, log in offsets.items()} == {
            "t": (0, 2),
            "u": (5, 5),
            "v": (5, 5),
        }

    run(third, check)


def test_partitions_not_created_on_a_full_disk_are_created_when_there_is_space() -> None:
    harness = ReplicasHarness(make_disk())

    async def main() -> None:
        await harness.start()
        harness.fail("/", "make_dir", "create", "append", number=errno.ENOSPC)
        harness.publish(topic("t", 2))
        await harness.replicas.settle()
        assert [harness.code("t", index) for index in range(2)] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert harness.directories.offline_ids() == []
        harness.replicas.retry_broken()
        await harness.replicas.settle()
        assert harness.code("t") is ErrorCode.KAFKA_STORAGE_ERROR
        harness.files.fault = None
        harness.replicas.retry_broken()
        await harness.replicas.settle()
        assert [harness.code("t", index) for index in range(2)] == [ErrorCode.NONE] * 2

    run(harness, main)


def test_topic_configs_are_applied_to_the_open_log() -> None:
    harness = ReplicasHarness(make_disk())

    async def main() -> None:
        await harness.start()
        harness.publish(topic("t", 1))
        await harness.replicas.settle()
        partition = harness.replicas.get("t", 0)
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
        harness.publish(topic("t", 1), configs={"t": options})
        await harness.replicas.settle()
        config = partition.log.config
        assert (config.segment_bytes, config.segment_ms, config.retention_ms) == (2_000_000, 77_000, 1)
        assert (config.retention_bytes, config.flush_messages, config.flush_ms) == (5, 1, 9)
        assert (config.index_interval_bytes, config.max_message_bytes, config.file_delete_delay_ms) == (11, 1234, 3)
        assert partition.log.segments.active.roll_after_ms == 77_000
        assert partition.checks.requires_keys and partition.waits_for_disk and partition.checks.after_max_ms == 5
        info = append(partition)
        assert info.log_append_time == NOW_MS
        flush = partition.flushed(info.last_offset)
        assert flush is not None and await flush is None
        harness.publish(topic("t", 1))
        await harness.replicas.settle()
        assert not partition.waits_for_disk and partition.log.config.retention_ms == 604_800_000

    run(harness, main)


def test_a_missing_log_is_not_recreated_while_a_directory_is_missing() -> None:
    """Guard against seed 226: metadata knew a move's target, the node died before the log was there, the source was gone."""
    files = make_disk()
    files.remove("/b")
    harness = ReplicasHarness(files)

    async def main() -> None:
        await harness.start(topic("moved", 1, IDS["/a"]))
        assert harness.code("moved") is ErrorCode.KAFKA_STORAGE_ERROR and not files.exists("/a/moved-0")
        harness.publish(topic("moved", 1, IDS["/a"]), topic("new", 1, IDS["/a"]))
        await harness.replicas.settle()
        assert harness.directory("new") == "/a"

    run(harness, main)


def test_a_listener_that_fails_on_a_leader_change_does_not_stop_other_partitions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = ReplicasHarness(make_disk())

    def fail(partition: Partition) -> None:
        raise ZeroDivisionError("a bug")

    harness.replicas.on_led["t"] = fail

    async def main() -> None:
        await harness.start(topic("t", 2), topic("u", 1))
        assert [harness.code("t", 0), harness.code("t", 1), harness.code("u")] == [ErrorCode.NONE] * 3
        assert [record.getMessage().split(":")[0] for record in caplog.records if record.exc_info] == ["t-0", "t-1"]

    run(harness, main)


@pytest.mark.parametrize("torn_bytes", [0, 7, None])
def test_records_whose_topic_id_a_crash_has_lost_are_not_given_to_a_new_topic_of_that_name(
    torn_bytes: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    files, old = make_disk(), topic("t", 2)
    first = ReplicasHarness(files)

    async def write() -> None:
        await first.start()
        first.publish(old)
        await first.replicas.settle()
        append(first.replicas.get("t", 0), 5)

    run(first, write)
    [where] = [path for path in PATHS if files.exists(f"{path}/t-0")]
    for path in PATHS:
        for index in range(2):
            name = f"{path}/t-{index}/{PARTITION_METADATA}"
            if not files.exists(name):
                continue
            if torn_bytes is None:
                files.remove(name)
            else:
                files.open(name).truncate(torn_bytes)
    second = ReplicasHarness(files)
    new = recreated(old)

    async def start() -> None:
        await second.start(new)
        for index in range(2):
            partition = second.replicas.get("t", index)
            assert (partition.log.log_end, partition.high_watermark, partition.log.topic_id) == (0, 0, new.id)
        [stray] = [f"{path}/{name}" for path in PATHS for name in files.list_dir(path) if name.endswith("-stray")]
        assert stray.startswith(f"{where}/t-0.")
        assert files.open(f"{stray}/{0:020d}.log").size() > 0
        assert f"{where}/t-0 has records, but the crash has left no id of their topic" in caplog.text

    run(second, start)


def test_a_log_without_a_topic_id_keeps_its_records_after_a_clean_stop() -> None:
    files = make_disk()
    places = write_three_partitions(files)
    for index, path in places.items():
        files.remove(f"{path}/t-{index}/{PARTITION_METADATA}")
    harness = ReplicasHarness(files)

    async def start() -> None:
        await harness.start(topic("t", 3))
        assert [harness.replicas.get("t", index).log.log_end for index in range(3)] == [4, 4, 4]

    run(harness, start)


def test_a_synced_log_keeps_its_records_when_its_topic_id_is_damaged() -> None:
    files = make_disk()
    first = ReplicasHarness(files)

    async def write() -> None:
        await first.start()
        first.publish(topic("t", 1))
        await first.replicas.settle()
        partition = first.replicas.get("t", 0)
        append(partition, 5)
        assert partition.commit is not None and await partition.commit.sync() is None
        await first.loop.run_in_executor(None, first.replicas.checkpoint())

    run(first, write)
    [where] = [path for path in PATHS if files.exists(f"{path}/t-0")]
    files.open(f"{where}/t-0/{PARTITION_METADATA}").truncate(7)
    second = ReplicasHarness(files)

    async def start() -> None:
        await second.start(topic("t", 1))
        assert second.replicas.get("t", 0).log.log_end == 5

    run(second, start)
