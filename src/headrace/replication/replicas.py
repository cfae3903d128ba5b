"""All partitions of this node: logs are opened, led, reconfigured and deleted to match the metadata image.

Work is a set of names to reconcile with the newest image, so order does not matter and nothing is done twice. It is done in
slices of a few milliseconds, with disk work in a thread: ten thousand new partitions must not delay a producer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from random import Random

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.base.ids import NodeId, TopicPartition, Uuid
from headrace.metadata.image import BROKER_CONFIG, LOST, TOPIC_CONFIG, Image
from headrace.metadata.image import Partition as PartitionState
from headrace.metadata.loader import Changes
from headrace.options.table import Value
from headrace.replication.damage import DamagedReplicas
from headrace.replication.directories import Directories, StorageFailed
from headrace.replication.group_commit import GroupCommit
from headrace.replication.local_logs import LocalLogs, Opened
from headrace.replication.local_replica import ReplicationPort
from headrace.replication.log_options import effective_options, log_config
from headrace.replication.offset_checkpoints import ALL_CHECKPOINTS, write_checkpoint
from headrace.replication.partition import Partition
from headrace.replication.traffic import Traffic
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.log_dirs import LogDir

log = logging.getLogger(__name__)

SLICE_S = 0.004
OPENED_AT_ONCE = 16  # logs opened per call in a thread
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
        random: Random,
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
        self._configs: dict[str, tuple[LogConfig, int]] = {}  # by topic, with min.insync.replicas; of this image
        self._closed = False
        self.failed: asyncio.Future[None] = loop.create_future()  # raises StorageFailed when this node must stop
        # Topic id and directory id of replicas that are not in the directory that metadata records. `on_unassigned` is called for each
        # new one, so that it is reported to the controller.
        self.unassigned: dict[TopicPartition, tuple[Uuid, Uuid]] = {}
        self.on_unassigned: Callable[[], None] = _do_nothing
        self.moving: set[TopicPartition] = set()  # replicas whose new directory `DirMoves` reports to the controller
        self.on_directory_failed: Callable[[], None] = _do_nothing
        self.rewrite_checkpoints: Callable[[], Awaitable[None]] = self._write_checkpoints
        self.port = ReplicationPort()  # of the partitions that are opened from now on
        self.on_role: Callable[[Partition], None] = lambda partition: None  # called whenever metadata has set a role
        # By topic: called after metadata has set the leader of one of its partitions.
        self.on_led: dict[str, Callable[[Partition], None]] = {}
        self._logs = LocalLogs(directories, node_id, random, loop, self.fail_directory)
        self._logs.find_logs()
        self._damage = DamagedReplicas(self, loop)

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

    @property
    def image(self) -> Image:
        return self._image

    def all(self) -> list[Partition]:
        return list(self._partitions.values())

    def holds(self, partition: Partition) -> bool:
        """Return whether the partition has not been deleted."""
        return self._partitions.get(partition.name) is partition

    def log_dir_of(self, partition: Partition) -> LogDir:
        parent = partition.log.directory.rpartition("/")[0]
        return next(log_dir for log_dir in self.directories.all() if log_dir.path == parent)

    def offline(self) -> list[TopicPartition]:
        """Return the partitions whose disk has failed or whose log could not be opened."""
        return [*self._logs.broken, *(partition.name for partition in self.all() if partition.offline is not None)]

    def report_read_error(self, error: OSError) -> None:
        log.error("the records for a request could not be read: %s; the client received an error", error)

    def report_unreadable(self, partition: Partition, error: OSError | CorruptData) -> None:
        """Log why a request could not be served, and give the replica up if its log is damaged."""
        if isinstance(error, CorruptData):
            self._damage.report(partition, error)
        else:
            self.report_read_error(error)

    def give_up(self, partition: Partition, why: str) -> None:
        """Take a replica offline and report it as lost, so that the controller takes it out of the ISR and elects another."""
        partition.is_given_up = True
        partition.go_offline(why)
        partition.log.abandon()
        self.on_role(partition)
        self.unassigned[partition.name] = (partition.topic_id, LOST)
        self.on_unassigned()

    # --- following metadata

    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        self._image = new
        if changes.configs or changes.deleted_topics:
            self._configs.clear()
        for name, topic_id in changes.deleted_topics:
            self.traffic.delete_topic(name)
            for key, partition in list(self._partitions.items()):
                if key[0] == name and partition.topic_id == topic_id:
                    self._todo[partition.name] = None
            for broken in [one for one in self._logs.broken if one.topic == name]:
                self._logs.delete_broken(broken)
        self._todo.update(dict.fromkeys(changes.partitions))
        if changes.brokers:
            # A follower that was fenced may join the ISR now, and one that is fenced holds up no deletion any more.
            brokers = set(changes.brokers)
            for partition in self._partitions.values():
                if partition.followers is not None and not brokers.isdisjoint(partition.replicas):
                    self._todo[partition.name] = None
        configured = [name for kind, name in changes.configs if kind == TOPIC_CONFIG]
        if any(kind == BROKER_CONFIG for kind, _ in changes.configs):
            configured = list(new.topics)  # broker options are the defaults of topics
        for name in configured:
            topic = new.topics.get(name)
            if topic is not None:
                for index in range(len(topic.partitions)):
                    self._todo[TopicPartition(name, index)] = None
        self._work()

    def retry_broken(self) -> None:
        """Retry the logs that could not be opened for lack of disk space, descriptors or memory."""
        self._todo.update(dict.fromkeys(self._logs.retry_broken()))
        self._work()

    def _work(self) -> None:
        if self._todo and self._worker is None and not self._closed:
            self._worker = self._loop.create_task(self._reconcile_all())

    async def settle(self) -> None:
        """Wait until nothing is left to do for the images seen so far."""
        while self._worker is not None:
            await asyncio.shield(self._worker)

    async def finish_loading(self) -> None:
        """Wait until the first image is applied, then rename the directories that no topic claims."""
        await self.settle()
        self._logs.rename_unclaimed_logs()

    async def _reconcile_all(self) -> None:
        """Reconcile all queued partitions.

        Logs are created and opened in a thread: on a busy disk that can take long, and the event loop must not wait.
        """
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
                    log.info("%d of %d partitions are ready", done, all_of)
        finally:
            self._worker = None

    def _reconcile(self, name: TopicPartition) -> bool:
        """Apply the image to an open partition or delete it; return True if the partition must be opened."""
        topic = self._image.topics.get(name.topic)
        partition = self._partitions.get(name)
        if partition is not None and (topic is None or partition.topic_id != topic.id):
            self._delete(partition)
            partition = None
        if topic is None or name.partition >= len(topic.partitions) or name in self._logs.broken:
            return False
        assigned = topic.partitions[name.partition]
        if self._node_id not in assigned.replicas:
            if partition is not None:
                log.info("%s has moved to the brokers %s; deleting this replica", name, assigned.replicas)
                self._delete(partition)
            return False
        if partition is None:
            return True
        if partition.is_given_up:
            if not self._damage.may_replace(partition, assigned):
                return False
            self._delete(partition)
            return True
        config, min_isr = self._topic_config(name.topic)
        partition.log.configure(config)
        partition.configure(min(min_isr, len(assigned.replicas)))
        if assigned.leader == self._node_id:
            partition.lead(assigned, self._clock.now_ms())
        else:
            partition.follow(assigned)
        self.on_role(partition)
        if (on_led := self.on_led.get(name.topic)) is not None:
            try:
                on_led(partition)
            except Exception:  # a bug in a coordinator; the other partitions must still be reconciled
                log.exception(
                    "%s: its coordinator failed to follow the change of leadership and does not serve requests", name
                )
        self._compare_directory(partition, assigned)
        return False

    def _topic_config(self, topic: str) -> tuple[LogConfig, int]:
        """Return the log config and min.insync.replicas of a topic, computed once for all of its partitions."""
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
        if self._logs.has_outdated_checkpoints and self._logs.creates(names):
            # BEFORE a log is created: after a crash the offsets of a deleted log would apply to a new one with its name.
            self._logs.has_outdated_checkpoints = False
            await self.rewrite_checkpoints()
            names = [name for name in names if self._reconcile(name)]  # metadata may have changed in the meantime
        opened, again = await self._logs.open(
            names, self._image, self._config, self._clock.now_ms(), self._is_current_topic
        )
        slice_end = self._loop.time() + SLICE_S
        for one in opened:
            self._adopt(one)
            if self._loop.time() > slice_end:
                await asyncio.sleep(0)
                slice_end = self._loop.time() + SLICE_S
        self._todo.update(dict.fromkeys(again))

    def _is_current_topic(self, name: TopicPartition, topic_id: Uuid) -> bool:
        topic = self._image.topics.get(name.topic)
        return topic is not None and topic.id == topic_id

    def _adopt(self, opened: Opened) -> None:
        # The log's topic id counts: the topic may have been deleted and its name reused while a thread opened the log.
        partition = Partition(opened.name, opened.log.topic_id, self._node_id, opened.log, opened.high_watermark)
        partition.traffic = self.traffic.topic(opened.name.topic)
        partition.port = self.port
        partition.commit = GroupCommit(opened.log, self._loop, partition.synced, partition.fail)
        partition.on_failure = partial(self.fail_directory, opened.log_dir)
        partition.on_suspicion = partial(self._damage.suspect, partition)
        self._partitions[opened.name] = partition
        if opened.log_dir.failure is not None:  # it failed while the thread opened the log
            self._lose(partition, opened.log_dir.failure)
        self._reconcile(opened.name)

    def exchange_log(self, partition: Partition, opened: Log, log_dir: LogDir) -> None:
        """Replace a partition's log with its copy in another directory; the caller removes the old log."""
        assert partition.commit is not None and partition.commit.under_way is None, "no sync of the old log is running"
        assert opened.log_end == partition.log.log_end, "the copy is complete"
        opened.producers.must_start_at_zero = partition.log.producers.must_start_at_zero
        self.directories.count_partition(self.log_dir_of(partition), -1)
        self.directories.count_partition(log_dir)
        partition.log = opened
        partition.commit = GroupCommit(opened, self._loop, partition.synced, partition.fail)
        partition.on_failure = partial(self.fail_directory, log_dir)
        self._reconcile(partition.name)

    def assigned_directory(self, name: TopicPartition) -> Uuid | None:
        """Return the directory of this node's replica according to metadata, or None if it is unknown."""
        state = self._image.partition(*name)
        return None if state is None else state.directory(self._node_id)

    def cancel_move(self, partition: Partition) -> None:
        """End a move that failed, and correct metadata if it already has the new directory."""
        self.moving.discard(partition.name)
        if self._partitions.get(partition.name) is partition:
            self.unassigned.pop(partition.name, None)
            self._reconcile(partition.name)

    def expire_producers_after(self, milliseconds: int) -> None:
        """Set the producer id expiration for logs that are configured from now on."""
        self._producer_id_expiration_ms = milliseconds
        self._configs.clear()

    def _delete(self, partition: Partition) -> None:
        del self._partitions[partition.name]
        self.unassigned.pop(partition.name, None)
        assert partition.commit is not None
        partition.commit.closed = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.name} was deleted")
        self._logs.delete(partition.log, self.log_dir_of(partition))
        partition.retire()
        self.on_role(partition)

    # --- disk failures

    def fail_directory(self, log_dir: LogDir, error: OSError) -> None:
        """Take a directory's partitions offline, and stop the node if it cannot run without the directory."""
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
            "%s: its %d partitions are offline, all others are served; check the disk, then restart this node",
            log_dir.failure,
            len(lost) + self._logs.waiting_in(log_dir),
        )
        self.on_directory_failed()

    def _lose(self, partition: Partition, why: str) -> None:
        partition.go_offline(why)
        self.on_role(partition)
        self._logs.in_thread(partition.log.abandon)

    def stop_node(self, fatal: StorageFailed) -> None:
        """Make `failed` raise the error, which stops the node."""
        log.critical("%s: this node stops; check the disk, then restart it", fatal)
        if not self.failed.done():
            self.failed.set_exception(fatal)
            self.failed.exception()  # retrieved so that asyncio does not log it if nothing awaits `failed`

    # --- checkpoints and closing

    def checkpoint(self, kinds: Sequence[str] = ALL_CHECKPOINTS) -> Callable[[], list[tuple[LogDir, OSError]]]:
        """Return a function that writes the checkpoints of all directories, to be run in a thread.

        The function returns the directories whose checkpoints could not be written, with the errors.
        """
        log_dirs = self.directories.online()
        partitions: dict[str, list[Partition]] = {log_dir.path: [] for log_dir in log_dirs}
        for partition in self._partitions.values():
            if partition.offline is None:
                partitions[partition.log.directory.rpartition("/")[0]].append(partition)
        waiting: dict[str, list[TopicPartition]] = {log_dir.path: [] for log_dir in log_dirs}
        for name, log_dir in self._logs.unopened():
            if log_dir.failure is None:
                waiting[log_dir.path].append(name)

        def write() -> list[tuple[LogDir, OSError]]:
            failures = []
            for log_dir in log_dirs:
                try:
                    for kind in kinds:
                        unopened = self._logs.stored.of(kind, waiting[log_dir.path])
                        write_checkpoint(log_dir, kind, partitions[log_dir.path], unopened)
                except OSError as error:
                    failures.append((log_dir, error))
            return failures

        return write

    async def _write_checkpoints(self) -> None:
        await self._loop.run_in_executor(None, self.checkpoint())

    def unsynced(self) -> list[Partition]:
        """Return the partitions that need an fsync.

        Either a segment is finished (Kafka makes those durable on roll) or producers wait for the fsync.
        """
        return [
            partition
            for partition in self._partitions.values()
            if partition.offline is None
            and (partition.is_held or partition.log.segments.active.base_offset > partition.log.recovery_point)
        ]

    async def quiet(self) -> None:
        """Wait until no fsync is running or requested."""
        for partition in self.all():
            while partition.commit is not None and (under_way := partition.commit.under_way) is not None:
                await under_way

    async def close(self) -> list[LogDir]:
        """Close all logs and write all checkpoints; return the directories where all of that succeeded."""
        self._closed = True
        unclean = {broken.log_dir.path for broken in self._logs.broken.values() if broken.log_dir is not None}
        partitions = [partition for partition in self._partitions.values() if partition.offline is None]
        # Many concurrent fsyncs cost the disk little more than one.
        shares = [partitions[number::CLOSING_THREADS] for number in range(CLOSING_THREADS)]
        closing = [self._loop.run_in_executor(None, _close_logs, share) for share in shares if share]
        for failures in await asyncio.gather(*closing):
            for partition, error in failures:
                log.error("%s could not be closed: %s; the next start will recover it", partition.name, error)
                unclean.add(self.log_dir_of(partition).path)
        for log_dir, failure in await self._loop.run_in_executor(None, self.checkpoint()):
            log.error(
                "the checkpoints in %s could not be written: %s; the next start will recover its logs",
                log_dir.path,
                failure,
            )
            unclean.add(log_dir.path)
        return [log_dir for log_dir in self.directories.online() if log_dir.path not in unclean]

    def abandon(self) -> None:
        """Close all files without writing anything, as in a crash."""
        self._closed = True
        for partition in self._partitions.values():
            partition.log.abandon()


def _close_logs(partitions: Sequence[Partition]) -> list[tuple[Partition, OSError]]:
    """Close the logs and return those that failed, which are abandoned. Call this in a thread: fsyncs block."""
    failures = []
    for partition in partitions:
        try:
            partition.log.close()
        except OSError as error:
            failures.append((partition, error))
            partition.log.abandon()
    return failures


def _do_nothing() -> None:
    """Do nothing: the default while no callback is set."""
