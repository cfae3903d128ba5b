"""All partitions of this node, kept in step with metadata: logs are opened, led, reconfigured and deleted as the image says.

Work comes as keys to reconcile with the newest image, so order does not matter and nothing is done twice. It is taken in slices
of a few milliseconds, and the disk work in a thread: ten thousand new partitions must not hold up a producer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.base.ids import NodeId, TopicPartition, Uuid
from headrace.base.options import Value
from headrace.metadata.image import BROKER_CONFIG, TOPIC_CONFIG, Image
from headrace.metadata.image import Partition as PartitionState
from headrace.metadata.loader import Changes
from headrace.replication.directories import Directories, StorageFailed
from headrace.replication.group_commit import GroupCommit
from headrace.replication.local_logs import LocalLogs, Opened
from headrace.replication.offset_checkpoints import ALL_CHECKPOINTS, write_checkpoint
from headrace.replication.options import effective_options, log_config
from headrace.replication.partition import Partition
from headrace.replication.traffic import Traffic
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.log_dirs import LogDir

log = logging.getLogger(__name__)

SLICE_S = 0.004
OPENED_AT_ONCE = 16  # by one call of a thread
CLOSING_THREADS = 8
PROGRESS_EVERY_S = 2.0


class Replicas:
    def __init__(
        self,
        directories: Directories,
        node_id: NodeId,
        defaults: Callable[[], Mapping[str, Value]],
        producer_id_expiration_ms: int,
        clock: Clock,
        chance: Random,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.directories = directories
        self._node_id = node_id
        self._defaults = defaults
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._clock = clock
        self._loop = loop
        self._image = Image()
        self.traffic = Traffic()
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._todo: dict[TopicPartition, None] = {}
        self._worker: asyncio.Task[None] | None = None
        self._configs: dict[str, tuple[LogConfig, int]] = {}  # of topics, and their min.insync.replicas, in this image
        self._closed = False
        self.failed: asyncio.Future[None] = loop.create_future()  # raises StorageFailed when this node must stop
        # Replicas that lie elsewhere than metadata says: the topic's id and the directory's. Whoever tells the controller is woken.
        self.unassigned: dict[TopicPartition, tuple[Uuid, Uuid]] = {}
        self.on_unassigned: Callable[[], None] = _nobody
        self.moving: set[TopicPartition] = set()  # to another directory: metadata is told by whoever moves them
        self.on_directory_failed: Callable[[], None] = _nobody
        self.on_led: dict[
            str, Callable[[Partition], None]
        ] = {}  # by topic: told after metadata said who leads one of its partitions
        self._logs = LocalLogs(directories, node_id, chance, loop, self.fail_directory)
        self._logs.look_around()

    # --- looking up

    def get(self, topic: str, index: int) -> Partition:
        partition = self._partitions.get((topic, index))
        if partition is not None:
            return partition
        if self._image.partition(topic, index) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        broken = self._logs.broken.get(TopicPartition(topic, index))
        if broken is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, broken.why)
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self._node_id} has no open replica of {topic}-{index}"
        )

    def all(self) -> list[Partition]:
        return list(self._partitions.values())

    def holds(self, partition: Partition) -> bool:
        """It was not deleted."""
        return self._partitions.get(partition.name) is partition

    def log_dir_of(self, partition: Partition) -> LogDir:
        parent = partition.log.directory.rpartition("/")[0]
        return next(log_dir for log_dir in self.directories.all() if log_dir.path == parent)

    def offline(self) -> list[TopicPartition]:
        """Those whose disk failed, now or when they were opened."""
        return [*self._logs.broken, *(partition.name for partition in self.all() if partition.offline is not None)]

    def report_read_error(self, error: OSError | CorruptData) -> None:
        log.error("a request could not be read from the disk: %s; its client was told", error)

    # --- following metadata

    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        self._image = new
        self._configs.clear()
        for name, topic_id in changes.deleted_topics:
            self.traffic.forget(name)
            for key, partition in list(self._partitions.items()):
                if key[0] == name and partition.topic_id == topic_id:
                    self._todo[partition.name] = None
            for broken in [one for one in self._logs.broken if one.topic == name]:
                self._logs.forget_broken(broken)
        changed = [*changes.topics, *(name for kind, name in changes.configs if kind == TOPIC_CONFIG)]
        if any(kind == BROKER_CONFIG for kind, _ in changes.configs):
            changed = list(new.topics)  # what a topic does not say itself comes from there
        for name in changed:
            topic = new.topics.get(name)
            if topic is not None:
                for index in range(len(topic.partitions)):
                    self._todo[TopicPartition(name, index)] = None
        self._work()

    def retry_broken(self) -> None:
        """What could not be opened for want of room is tried again."""
        self._todo.update(dict.fromkeys(self._logs.retry_broken()))
        self._work()

    def _work(self) -> None:
        if self._todo and self._worker is None and not self._closed:
            self._worker = self._loop.create_task(self._reconcile_all())

    async def settle(self) -> None:
        """Returns when nothing is left to do for the images seen so far."""
        while self._worker is not None:
            await asyncio.shield(self._worker)

    async def finish_loading(self) -> None:
        """After the first image."""
        await self.settle()
        self._logs.put_strays_aside()

    async def _reconcile_all(self) -> None:
        """Directories are made and opened in a thread: behind a busy disk that can take long, and the loop goes on."""
        shown, done, all_of = self._loop.time(), 0, len(self._todo)
        slice_end = shown + SLICE_S
        try:
            while self._todo and not self._closed:
                to_open: list[TopicPartition] = []
                while self._todo and len(to_open) < OPENED_AT_ONCE and self._loop.time() < slice_end:
                    name = next(iter(self._todo))
                    del self._todo[name]
                    if self._reconcile(name):
                        to_open.append(name)
                if to_open:
                    await self._open(to_open)
                if self._loop.time() > slice_end:
                    await asyncio.sleep(0)
                    slice_end = self._loop.time() + SLICE_S
                if self._loop.time() - shown > PROGRESS_EVERY_S:
                    shown, done = self._loop.time(), max(done, all_of - len(self._todo))
                    log.info("partitions: %d of %d are ready", done, all_of)
        finally:
            self._worker = None

    def _reconcile(self, name: TopicPartition) -> bool:
        """Makes an open partition what the image says, or deletes it; True if there is one to be opened."""
        topic = self._image.topics.get(name.topic)
        partition = self._partitions.get(name)
        if partition is not None and (topic is None or partition.topic_id != topic.id):
            self._delete(partition)
            partition = None
        if topic is None or name.partition >= len(topic.partitions) or name in self._logs.broken:
            return False
        assigned = topic.partitions[name.partition]
        if self._node_id not in assigned.replicas:
            return False
        if partition is None:
            return True
        config, min_isr = self._topic_config(name.topic)
        partition.log.configure(config)
        partition.configure(min(min_isr, len(assigned.replicas)))
        partition.lead(assigned.leader, assigned.leader_epoch, assigned.isr)
        if (tell := self.on_led.get(name.topic)) is not None:
            tell(partition)
        self._compare_directory(partition, assigned)
        return False

    def _topic_config(self, topic: str) -> tuple[LogConfig, int]:
        """Also min.insync.replicas. Worked out once for all partitions of a topic."""
        found = self._configs.get(topic)
        if found is None:
            options = effective_options(self._defaults(), self._image.config(TOPIC_CONFIG, topic))
            min_isr = options["min.insync.replicas"]
            assert isinstance(min_isr, int)
            found = self._configs[topic] = (log_config(options, self._producer_id_expiration_ms), min_isr)
        return found

    def _config(self, topic: str) -> LogConfig:
        return self._topic_config(topic)[0]

    def _compare_directory(self, partition: Partition, assigned: PartitionState) -> None:
        meta = self.log_dir_of(partition).meta
        assert meta is not None, "only formatted directories are opened"
        if partition.name in self.moving:
            return
        if assigned.directory(self._node_id) == meta.directory_id:
            self.unassigned.pop(partition.name, None)
        elif partition.name not in self.unassigned:
            self.unassigned[partition.name] = (partition.topic_id, meta.directory_id)
            self.on_unassigned()

    async def _open(self, names: Sequence[TopicPartition]) -> None:
        opened, again = await self._logs.open(names, self._image, self._config, self._clock.now_ms(), self._still)
        slice_end = self._loop.time() + SLICE_S
        for one in opened:
            self._adopt(one)
            if self._loop.time() > slice_end:
                await asyncio.sleep(0)
                slice_end = self._loop.time() + SLICE_S
        self._todo.update(dict.fromkeys(again))

    def _still(self, name: TopicPartition, topic_id: Uuid) -> bool:
        topic = self._image.topics.get(name.topic)
        return topic is not None and topic.id == topic_id

    def _adopt(self, opened: Opened) -> None:
        # The id is the log's own: the topic may have been deleted, and its name used again, while a thread opened it.
        partition = Partition(opened.name, opened.log.topic_id, self._node_id, opened.log, opened.high_watermark)
        partition.traffic = self.traffic.topic(opened.name.topic)
        partition.commit = GroupCommit(opened.log, self._loop, partition.synced, partition.fail)
        partition.on_failure = partial(self.fail_directory, opened.log_dir)
        self._partitions[opened.name] = partition
        if opened.log_dir.failure is not None:  # it came while the thread was at work
            self._lose(partition, opened.log_dir.failure)
        self._reconcile(opened.name)

    def exchange_log(self, partition: Partition, opened: Log, log_dir: LogDir) -> None:
        """Its records lie in another directory now; the log that it had is for the caller to remove."""
        assert partition.commit is not None and partition.commit.under_way is None, (
            "no sync of the old log is under way"
        )
        assert opened.log_end == partition.log.log_end, "nothing is left behind"
        self.directories.holds(self.log_dir_of(partition), -1)
        self.directories.holds(log_dir)
        partition.log = opened
        partition.commit = GroupCommit(opened, self._loop, partition.synced, partition.fail)
        partition.on_failure = partial(self.fail_directory, log_dir)
        self._reconcile(partition.name)

    def assigned_directory(self, name: TopicPartition) -> Uuid | None:
        """Where this node's replica lies, as metadata knows it."""
        state = self._image.partition(*name)
        return None if state is None else state.directory(self._node_id)

    def stays(self, partition: Partition) -> None:
        """It is not moved after all; metadata may believe it is."""
        self.moving.discard(partition.name)
        if self._partitions.get(partition.name) is partition:
            self.unassigned.pop(partition.name, None)
            self._reconcile(partition.name)

    def expire_producers_after(self, milliseconds: int) -> None:
        """For what is configured from here on."""
        self._producer_id_expiration_ms = milliseconds
        self._configs.clear()

    def _delete(self, partition: Partition) -> None:
        del self._partitions[partition.name]
        self.unassigned.pop(partition.name, None)
        assert partition.commit is not None
        partition.commit.closed = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.name} was deleted")
        self._logs.delete(partition.log, self.log_dir_of(partition))
        partition.lead(-1, partition.leader_epoch + 1, ())

    # --- disks that fail

    def fail_directory(self, log_dir: LogDir, error: OSError) -> None:
        """Its partitions are offline from here on; the node goes on with the others, if it can."""
        if log_dir.failure is not None or self._closed:
            return
        fatal = self.directories.fail(log_dir, error)
        assert log_dir.failure is not None
        lost = [one for one in self.all() if one.offline is None and self.log_dir_of(one) is log_dir]
        for partition in lost:
            self._lose(partition, log_dir.failure)
        if fatal is not None:
            self.stop_node(fatal)
            return
        log.error(
            "%s: its %d partitions are offline, all others are served; look at the disk, and start this node again",
            log_dir.failure,
            len(lost) + self._logs.waiting_in(log_dir),
        )
        self.on_directory_failed()

    def _lose(self, partition: Partition, why: str) -> None:
        partition.go_offline(why)
        self._logs.in_thread(partition.log.abandon)

    def stop_node(self, fatal: StorageFailed) -> None:
        """Whoever waits for `failed` hears of it."""
        log.critical("%s: this node stops; look at the disk, and start it again", fatal)
        if not self.failed.done():
            self.failed.set_exception(fatal)
            self.failed.exception()  # looked at: a node may be stopped before anybody waits for it

    # --- checkpoints and the end

    def checkpoint(self, kinds: Sequence[str] = ALL_CHECKPOINTS) -> Callable[[], list[tuple[LogDir, OSError]]]:
        """What to write, directory by directory: to be run in a thread. It gives back what could not be written."""
        log_dirs = self.directories.online()
        partitions: dict[str, list[Partition]] = {log_dir.path: [] for log_dir in log_dirs}
        for partition in self._partitions.values():
            if partition.offline is None:
                partitions[partition.log.directory.rpartition("/")[0]].append(partition)
        broken: dict[str, list[TopicPartition]] = {log_dir.path: [] for log_dir in log_dirs}
        for name, one in self._logs.broken.items():
            if one.log_dir is not None and one.log_dir.failure is None:
                broken[one.log_dir.path].append(name)

        def write() -> list[tuple[LogDir, OSError]]:
            failures = []
            for log_dir in log_dirs:
                try:
                    for kind in kinds:
                        kept = self._logs.stored.of(kind, broken[log_dir.path])
                        write_checkpoint(log_dir, kind, partitions[log_dir.path], kept)
                except OSError as error:
                    failures.append((log_dir, error))
            return failures

        return write

    def unsynced(self) -> list[Partition]:
        """Partitions that want an fsync: a segment is finished (Kafka makes those durable on roll), or producers wait for it."""
        return [
            partition
            for partition in self._partitions.values()
            if partition.offline is None
            and (partition.is_held or partition.log.segments.active.base_offset > partition.log.recovery_point)
        ]

    async def quiet(self) -> None:
        """Returns when no fsync is under way and none is asked for."""
        for partition in self.all():
            while partition.commit is not None and (under_way := partition.commit.under_way) is not None:
                await under_way

    async def close(self) -> list[LogDir]:
        """Clean: every log closed, every checkpoint written. Returns the directories of which all of that is true."""
        self._closed = True
        unclean = {broken.log_dir.path for broken in self._logs.broken.values() if broken.log_dir is not None}
        partitions = [partition for partition in self._partitions.values() if partition.offline is None]
        # Many fsyncs side by side cost the disk little more than one.
        shares = [partitions[number::CLOSING_THREADS] for number in range(CLOSING_THREADS)]
        closing = [self._loop.run_in_executor(None, _close_logs, share) for share in shares if share]
        for failures in await asyncio.gather(*closing):
            for partition, error in failures:
                log.error("%s could not be closed: %s; the next start will check it", partition.name, error)
                unclean.add(self.log_dir_of(partition).path)
        for log_dir, failure in await self._loop.run_in_executor(None, self.checkpoint()):
            log.error("no checkpoint in %s: %s; the next start will check its logs", log_dir.path, failure)
            unclean.add(log_dir.path)
        return [log_dir for log_dir in self.directories.online() if log_dir.path not in unclean]

    def abandon(self) -> None:
        """Gives all files up as they are, as a crash would."""
        self._closed = True
        for partition in self._partitions.values():
            partition.log.abandon()


def _close_logs(partitions: Sequence[Partition]) -> list[tuple[Partition, OSError]]:
    """In a thread, for it blocks for the fsyncs. Those that could not be closed are given up as they are."""
    failures = []
    for partition in partitions:
        try:
            partition.log.close()
        except OSError as error:
            failures.append((partition, error))
            partition.log.abandon()
    return failures


def _nobody() -> None:
    """Nobody listens yet."""
