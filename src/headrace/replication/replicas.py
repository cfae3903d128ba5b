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
from headrace.base.ids import NodeId, TopicPartition, new_uuid
from headrace.base.options import Value
from headrace.metadata.image import TOPIC_CONFIG, Image
from headrace.metadata.loader import Changes
from headrace.replication.options import effective_options, log_config
from headrace.replication.partition import Partition
from headrace.storage.checkpoints import HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from headrace.storage.log import Log
from headrace.storage.log_dirs import LogDir
from headrace.storage.names import STRAY_DIR_SUFFIX, marked_dir_name
from headrace.storage.recovery import RecoveryReport

log = logging.getLogger(__name__)

SLICE_S = 0.004
OPENED_AT_ONCE = 16  # by one call of a thread
PROGRESS_EVERY_S = 2.0


class Replicas:
    def __init__(
        self,
        log_dirs: Sequence[LogDir],
        node_id: NodeId,
        defaults: Callable[[], Mapping[str, Value]],
        producer_id_expiration_ms: int,
        clock: Clock,
        chance: Random,
        loop: asyncio.AbstractEventLoop,
        *,
        clean: bool,
    ) -> None:
        self._log_dirs = list(log_dirs)
        self._node_id = node_id
        self._defaults = defaults
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._clock = clock
        self._chance = chance
        self._loop = loop
        self._clean = clean
        self._image = Image()
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._todo: dict[TopicPartition, None] = {}
        self._worker: asyncio.Task[None] | None = None
        self._closed = False
        self._found: dict[TopicPartition, LogDir] = {}  # directories that were there at the start and are not open yet
        self._broken: dict[
            TopicPartition, str
        ] = {}  # directories that could not be opened, and why: offline until a restart
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        self._removals: set[asyncio.Future[None]] = set()
        self._look_around()

    def _look_around(self) -> None:
        """What the last run left: whose directories, and how far they were known to be good."""
        for log_dir in self._log_dirs:
            contents = log_dir.contents()
            for path in contents.deleted:
                log_dir.files.remove(path)
            for name in contents.partitions:
                if name in self._found:
                    log.error(
                        "%s lies in %s and in %s: the second is not used", name, self._found[name].path, log_dir.path
                    )
                    continue
                self._found[name] = log_dir
            for checkpoint in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT):
                self._offsets.setdefault(checkpoint, {}).update(log_dir.load_offsets(checkpoint))
            for damage in log_dir.checkpoint_damage:
                log.warning("%s; the offsets are worked out from the logs instead", damage)

    # --- looking up

    def get(self, topic: str, index: int) -> Partition:
        partition = self._partitions.get((topic, index))
        if partition is not None:
            return partition
        if self._image.partition(topic, index) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        broken = self._broken.get(TopicPartition(topic, index))
        if broken is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, broken)
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self._node_id} has no open replica of {topic}-{index}"
        )

    def all(self) -> list[Partition]:
        return list(self._partitions.values())

    def offline(self) -> list[TopicPartition]:
        """Those whose disk failed, now or when they were opened."""
        return [*self._broken, *(partition.name for partition in self.all() if partition.offline is not None)]

    def report_read_error(self, error: OSError | CorruptData) -> None:
        log.error("a request could not be read from the disk: %s; its client was told", error)

    # --- following metadata

    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        self._image = new
        for name, topic_id in changes.deleted_topics:
            for key, partition in list(self._partitions.items()):
                if key[0] == name and partition.topic_id == topic_id:
                    self._todo[partition.name] = None
        for name in [*changes.topics, *(name for kind, name in changes.configs if kind == TOPIC_CONFIG)]:
            topic = new.topics.get(name)
            if topic is not None:
                for index in range(len(topic.partitions)):
                    self._todo[TopicPartition(name, index)] = None
        if self._todo and self._worker is None:
            self._worker = self._loop.create_task(self._reconcile_all())

    async def settle(self) -> None:
        """Returns when nothing is left to do for the images seen so far."""
        while self._worker is not None:
            await asyncio.shield(self._worker)

    async def finish_loading(self) -> None:
        """After the first image: directories that no topic claims are put aside, where an operator can look at them."""
        await self.settle()
        for name, log_dir in self._found.items():
            stray = f"{log_dir.path}/{marked_dir_name(name, new_uuid(self._chance).hex(), STRAY_DIR_SUFFIX)}"
            log.warning(
                "%s belongs to no topic of this cluster; it was renamed to %s", log_dir.partition_path(name), stray
            )
            log_dir.files.rename(log_dir.partition_path(name), stray)
        self._found.clear()

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
        if topic is None or name.partition >= len(topic.partitions) or name in self._broken:
            return False
        assigned = topic.partitions[name.partition]
        if self._node_id not in assigned.replicas:
            return False
        if partition is None:
            return True
        options = effective_options(self._defaults(), self._image.config(TOPIC_CONFIG, name.topic))
        partition.log.configure(log_config(options, self._producer_id_expiration_ms))
        min_isr = options["min.insync.replicas"]
        assert isinstance(min_isr, int)
        partition.configure(min(min_isr, len(assigned.replicas)))
        partition.lead(assigned.leader, assigned.leader_epoch, assigned.isr)
        return False

    # --- logs

    def _opening(self, name: TopicPartition) -> Callable[[], tuple[Log, RecoveryReport]]:
        """Any thread may call it: everything is looked up here, for the image may be another one by then."""
        options = effective_options(self._defaults(), self._image.config(TOPIC_CONFIG, name.topic))
        found = self._found.get(name)
        log_dir = found or self._roomiest()
        return partial(
            Log.open,
            log_dir.files,
            log_dir.partition_path(name),
            name,
            log_config(options, self._producer_id_expiration_ms),
            topic_id=self._image.topics[name.topic].id,
            # Checkpoints speak of what was there at the start, not of a topic that took the name since.
            recovery_point=self._offsets[RECOVERY_POINT_CHECKPOINT].get(name, 0) if found else 0,
            log_start=self._offsets[LOG_START_CHECKPOINT].get(name, 0) if found else 0,
            clean=self._clean,
            now_ms=self._clock.now_ms(),
        )

    def _roomiest(self) -> LogDir:
        """The directory with the fewest partitions, as Kafka chooses."""
        counts = {log_dir.path: 0 for log_dir in self._log_dirs}
        if len(counts) > 1:
            for partition in self._partitions.values():
                counts[partition.log.directory.rpartition("/")[0]] += 1
        return min(self._log_dirs, key=lambda log_dir: counts[log_dir.path])

    async def _open(self, names: Sequence[TopicPartition]) -> None:
        if not names:
            return
        topic_ids = {name: self._image.topics[name.topic].id for name in names}
        openings = [self._opening(name) for name in names]
        results = await self._loop.run_in_executor(None, lambda: [_attempt(opening) for opening in openings])
        for name, result in zip(names, results, strict=True):
            if not isinstance(result, Exception):
                self._adopt(name, *result)
                self._reconcile(name)
            elif (
                isinstance(result, KafkaError)
                and result.code is ErrorCode.INCONSISTENT_TOPIC_ID
                and name in self._found
            ):
                now = self._image.topics.get(name.topic)
                if now is not None and now.id == topic_ids[name]:
                    self._set_aside(name)
                self._todo[name] = None  # the directory may belong to what the name means by now
            else:
                log.error("%s cannot be opened and is offline: %r", name, result)
                if self._found.pop(name, None) is not None:
                    # What lies there belongs to the topic: neither is it a stray, nor may an empty log take its place.
                    self._broken[name] = f"{name} is offline: {result}"

    def _set_aside(self, name: TopicPartition) -> None:
        """A directory of an older topic of that name, deleted while this node was down."""
        log_dir = self._found.pop(name)
        path = f"{log_dir.path}/{marked_dir_name(name, new_uuid(self._chance).hex(), '-delete')}"
        log_dir.files.rename(log_dir.partition_path(name), path)
        self._remove_later(log_dir, path)

    def _adopt(self, name: TopicPartition, opened: Log, report: RecoveryReport) -> Partition:
        found = self._found.pop(name, None)
        for message in report.messages():
            log.warning("recovery: %s", message)
        high_watermark = self._offsets[HIGH_WATERMARK_CHECKPOINT].get(name, 0) if found else 0
        # The id is the log's own: the topic may have been deleted, and its name used again, while a thread opened it.
        partition = Partition(name, opened.topic_id, self._node_id, opened, high_watermark)
        self._partitions[name] = partition
        return partition

    def _delete(self, partition: Partition) -> None:
        """Renamed at once, so that the name is free; the files go in a thread."""
        del self._partitions[partition.name]
        log_dir = next(d for d in self._log_dirs if partition.log.directory.startswith(d.path + "/"))
        try:
            path = partition.log.delete_directory(new_uuid(self._chance).hex())
        except OSError as error:
            log.error("%s could not be deleted: %s", partition.name, error)
            return
        partition.lead(-1, partition.leader_epoch + 1, ())
        self._remove_later(log_dir, path)

    def _remove_later(self, log_dir: LogDir, path: str) -> None:
        removal = self._loop.run_in_executor(None, log_dir.files.remove, path)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    # --- checkpoints and the end

    def checkpoint(self) -> Callable[[], None]:
        """Takes the offsets now; the returned function writes them and may run in a thread."""
        return self._checkpoint_of([RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT])

    def checkpoint_high_watermarks(self) -> Callable[[], None]:
        return self._checkpoint_of([HIGH_WATERMARK_CHECKPOINT])

    def _checkpoint_of(self, kinds: Sequence[str]) -> Callable[[], None]:
        writes: list[tuple[LogDir, str, dict[TopicPartition, int]]] = []
        for log_dir in self._log_dirs:
            mine = [p for p in self._partitions.values() if p.log.directory.startswith(log_dir.path + "/")]
            for kind in kinds:
                offsets = {p.name: _offset_of(p, kind) for p in mine}
                if kind == LOG_START_CHECKPOINT:
                    offsets = {
                        p.name: p.log.log_start for p in mine if p.log.log_start > p.log.segments.first.base_offset
                    }
                writes.append((log_dir, kind, offsets))

        def write() -> None:
            for log_dir, kind, offsets in writes:
                log_dir.write_offsets(kind, offsets)

        return write

    def rolled(self) -> list[Partition]:
        """Partitions whose log has begun a segment behind its recovery point: Kafka makes the finished ones durable on roll."""
        return [
            partition
            for partition in self._partitions.values()
            if partition.offline is None and partition.log.segments.active.base_offset > partition.log.recovery_point
        ]

    def close(self) -> None:
        """Clean: every log closed, every checkpoint written. Blocks for the fsyncs: runs in a thread, with nobody else at work."""
        self._closed = True
        for partition in self._partitions.values():
            if partition.offline is None:
                partition.log.close()
        self.checkpoint()()

    def abandon(self) -> None:
        """Gives all files up as they are, as a crash would."""
        self._closed = True
        for partition in self._partitions.values():
            partition.log.abandon()


def _attempt(opening: Callable[[], tuple[Log, RecoveryReport]]) -> tuple[Log, RecoveryReport] | Exception:
    """Whatever is wrong with one log, a broken invariant included, is no reason not to open the others."""
    try:
        return opening()
    except Exception as error:
        return error


def _offset_of(partition: Partition, kind: str) -> int:
    if kind == RECOVERY_POINT_CHECKPOINT:
        return partition.log.recovery_point
    return partition.high_watermark if kind == HIGH_WATERMARK_CHECKPOINT else partition.log.log_start
