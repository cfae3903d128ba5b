"""The logs in this node's directories: found at startup, opened in a thread, renamed if no topic claims them.

A log that cannot be opened is broken. It still belongs to its topic: it is not renamed, and no empty log may replace it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NodeId, TopicPartition, Uuid, new_uuid
from headrace.metadata.image import Image
from headrace.options.table import LONG_MAX
from headrace.replication.directories import Directories
from headrace.replication.offset_checkpoints import StoredOffsets
from headrace.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from headrace.storage.files import Files, is_transient
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.log_dirs import LogDir
from headrace.storage.names import DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX, marked_dir_name
from headrace.storage.partition_metadata import RecordsWithoutOwner, require_owner
from headrace.storage.recovery import RecoveryReport

log = logging.getLogger(__name__)


OpenedLog = tuple[Log, RecoveryReport]


class Broken(NamedTuple):
    """A log that could not be opened. It is offline until a restart, or until a retry if the cause was transient."""

    why: str
    log_dir: LogDir | None  # directory of its records, if they were found
    is_transient: bool = False  # whether the cause was a lack of disk space, descriptors or memory


class Opened(NamedTuple):
    name: TopicPartition
    log: Log
    log_dir: LogDir
    high_watermark: int


class LocalLogs:
    def __init__(
        self,
        directories: Directories,
        node_id: NodeId,
        random: Random,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[LogDir, OSError], None],
    ) -> None:
        self.directories = directories
        self._node_id = node_id
        self._random = random
        self._loop = loop
        self._on_failure = on_failure
        self._found: dict[TopicPartition, LogDir] = {}  # logs found at startup that are not open yet
        self._duplicates: dict[TopicPartition, LogDir] = {}  # second directories of those, after an interrupted move
        self._loaded = False  # whether the first image was applied; partitions from then on are new
        self._in_threads: dict[asyncio.Future[None], None] = {}
        self.stored = StoredOffsets()
        # Whether the checkpoints on disk may have offsets of logs that are gone: their names may be reused.
        self.has_outdated_checkpoints = False
        self.broken: dict[TopicPartition, Broken] = {}

    # --- startup

    def find_logs(self) -> None:
        """Find the log directories and checkpoints that the last run left."""
        for log_dir in self.directories.online():
            try:
                self._find_logs_in(log_dir)
            except OSError as error:
                self._on_failure(log_dir, error)
        self.has_outdated_checkpoints = not self.stored.names <= self._found.keys()

    def _find_logs_in(self, log_dir: LogDir) -> None:
        contents = log_dir.contents()
        for path in contents.deleted:
            self.in_thread(log_dir.files.remove, path)
        self.stored.load(log_dir)
        for damage in log_dir.checkpoint_damage:
            log.warning("%s; computing the offsets from the logs instead", damage)
        for name in contents.partitions:
            if name in self._found:
                self._duplicates[name] = log_dir
            else:
                self._found[name] = log_dir
                self.directories.count_partition(log_dir)

    def rename_unclaimed_logs(self) -> None:
        """Rename the directories that no topic of the first image claims, for an operator to inspect."""
        for name, log_dir in [*self._found.items(), *self._duplicates.items()]:
            log.warning("%s belongs to no topic of this cluster; renaming it", log_dir.partition_path(name))
            self._rename_as_stray(name, log_dir)
        for log_dir in self._found.values():
            self.directories.count_partition(log_dir, -1)
        self._found.clear()
        self._duplicates.clear()
        self._loaded = True

    def _rename_as_stray(self, name: TopicPartition, log_dir: LogDir) -> None:
        self.has_outdated_checkpoints = True
        path = log_dir.partition_path(name)
        stray = f"{log_dir.path}/{marked_dir_name(name, new_uuid(self._random).hex(), STRAY_DIR_SUFFIX)}"
        try:
            log_dir.files.rename(path, stray)
        except OSError as error:
            log.error("%s could not be renamed: %s; it is ignored until the next start", path, error)
        else:
            log.warning("%s was renamed to %s; delete it if its records are not needed", path, stray)

    def waiting_in(self, log_dir: LogDir) -> int:
        """Return how many logs of a directory are not open yet."""
        return sum(found is log_dir for found in self._found.values())

    def unopened(self) -> list[tuple[TopicPartition, LogDir]]:
        """Return the logs that are not open, with their directories: those that are not open yet, and broken ones."""
        broken = [(name, one.log_dir) for name, one in self.broken.items() if one.log_dir is not None]
        return [*self._found.items(), *broken]

    def creates(self, names: Sequence[TopicPartition]) -> bool:
        """Return whether opening these partitions creates a log."""
        return any(name not in self._found for name in names)

    # --- opening

    async def open(
        self,
        names: Sequence[TopicPartition],
        image: Image,
        config: Callable[[str], LogConfig],
        now_ms: int,
        is_current: Callable[[TopicPartition, Uuid], bool],
    ) -> tuple[list[Opened], list[TopicPartition]]:
        """Open the logs of `names`; return the open ones and the names that must be reconciled again.

        `is_current` is called afterwards, to find out whether a name still belongs to the topic with that id.
        """
        chosen = [(name, log_dir) for name in names if (log_dir := self._directory_for(name, image)) is not None]
        if not chosen:
            return [], []
        openings = [
            self._opening(name, log_dir, image.topics[name.topic].id, config(name.topic), now_ms)
            for name, log_dir in chosen
        ]
        results = await self._loop.run_in_executor(None, lambda: [_attempt(opening) for opening in openings])
        opened: list[Opened] = []
        again: list[TopicPartition] = []
        for (name, log_dir), result in zip(chosen, results, strict=True):
            if not isinstance(result, Exception):
                opened.append(self._take(name, log_dir, *result))
            elif isinstance(result, RecordsWithoutOwner) and name in self._found:
                log.warning("%s; renaming it, and beginning with an empty log", result.message)
                self._rename_as_stray(name, self._found.pop(name))
                self.directories.count_partition(log_dir, -1)
                again.append(name)
            elif (
                isinstance(result, KafkaError)
                and result.code is ErrorCode.INCONSISTENT_TOPIC_ID
                and name in self._found
            ):
                if is_current(name, image.topics[name.topic].id):
                    self.delete_unopened(name, self._found.pop(name))
                again.append(name)  # the directory may belong to the topic that has the name by now
            elif not self._note(name, log_dir, result):
                again.append(name)
        return opened, again

    def _directory_for(self, name: TopicPartition, image: Image) -> LogDir | None:
        """Return the directory of an existing or new log; None, after marking it broken, if that cannot be used."""
        self._choose_duplicate(name, image)
        found = self._found.get(name)
        try:
            if found is None:
                state = image.topics[name.topic].partitions[name.partition]
                log_dir = self.directories.directory_for(name, state, self._node_id, is_new=self._loaded)
                self.directories.count_partition(log_dir)
                return log_dir
            if found.failure is None:
                return found
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} is offline: {found.failure}")
        except KafkaError as error:
            self._break(name, Broken(error.message, self._found.pop(name, None)))
            return None

    def _choose_duplicate(self, name: TopicPartition, image: Image) -> None:
        """Choose between two directories of the same replica according to metadata.

        A move was interrupted: metadata records the new directory BEFORE it is used.
        """
        duplicate = self._duplicates.pop(name, None)
        found = self._found.get(name)
        if duplicate is None or found is None:
            return
        assigned = image.topics[name.topic].partitions[name.partition].directory(self._node_id)
        if duplicate.meta is not None and duplicate.meta.directory_id == assigned:
            self._found[name], duplicate = duplicate, found
            self.directories.count_partition(self._found[name])
            self.directories.count_partition(duplicate, -1)
        log.warning("%s was found in two directories; ignoring the one in %s and renaming it", name, duplicate.path)
        self._rename_as_stray(name, duplicate)

    def _opening(
        self, name: TopicPartition, log_dir: LogDir, topic_id: Uuid, config: LogConfig, now_ms: int
    ) -> Callable[[], OpenedLog]:
        """Return a function that opens the log in any thread; all state it needs is read here."""
        found = name in self._found
        recovery_point = self.stored.get(RECOVERY_POINT_CHECKPOINT, name) if found else 0
        return partial(
            _open,
            log_dir.files,
            log_dir.partition_path(name),
            name,
            config,
            # A log with a recovery point was synced together with its owner: if the owner is lost now, the file was damaged later.
            must_have_owner=found and not log_dir.was_clean and recovery_point == 0,
            topic_id=topic_id,
            # Checkpoints apply to logs found at startup, not to a topic that has reused the name since.
            recovery_point=recovery_point,
            log_start=self.stored.get(LOG_START_CHECKPOINT, name) if found else 0,
            clean=log_dir.was_clean,
            now_ms=now_ms,
        )

    def _take(self, name: TopicPartition, log_dir: LogDir, opened: Log, report: RecoveryReport) -> Opened:
        for message in report.messages():
            log.warning("recovery: %s", message)
        existed = self._found.pop(name, None) is not None
        if existed:
            opened.cleaned_to = self.stored.get(CLEANER_CHECKPOINT, name)
        return Opened(
            name, opened, log_dir, self.stored.get(HIGH_WATERMARK_CHECKPOINT, name) if existed else opened.log_start
        )

    def _note(self, name: TopicPartition, log_dir: LogDir, error: Exception) -> bool:
        """Mark a log that could not be opened as broken; return False if another directory can be tried."""
        existed = self._found.pop(name, None) is not None
        if not existed:
            self.directories.count_partition(log_dir, -1)
        if isinstance(error, OSError) and is_transient(error):
            where = log_dir if existed else None
            self._break(name, Broken(f"{name} is offline: {error.strerror}", where, is_transient=True))
        elif isinstance(error, OSError) and not existed:
            # A directory in which not even an empty log can be created has failed.
            self._on_failure(log_dir, error)
            return False
        else:
            self._break(name, Broken(f"{name} is offline: {error}", log_dir))
        return True

    def _break(self, name: TopicPartition, broken: Broken) -> None:
        self.broken[name] = broken
        log.error("%s", broken.why)

    def retry_broken(self) -> list[TopicPartition]:
        """Stop treating logs as broken that only lacked resources; return their names, to be reconciled again."""
        names = [name for name, broken in self.broken.items() if broken.is_transient]
        for name in names:
            log_dir = self.broken.pop(name).log_dir
            if log_dir is not None:
                self._found[name] = log_dir
        return names

    # --- deleting

    def delete_broken(self, name: TopicPartition) -> None:
        """Remove a broken log whose topic was deleted."""
        log_dir = self.broken.pop(name).log_dir
        if log_dir is not None and log_dir.failure is None:
            self.delete_unopened(name, log_dir)

    def delete_unopened(self, name: TopicPartition, log_dir: LogDir) -> None:
        """Rename the directory of a deleted topic, whose name may already be reused, and remove it in a thread."""
        path = f"{log_dir.path}/{marked_dir_name(name, new_uuid(self._random).hex(), DELETE_DIR_SUFFIX)}"
        self.has_outdated_checkpoints = True
        self.directories.count_partition(log_dir, -1)
        try:
            log_dir.files.rename(log_dir.partition_path(name), path)
        except OSError as error:
            log.error("%s could not be deleted: %s; delete its directory after the next stop", name, error)
        else:
            self.in_thread(log_dir.files.remove, path)

    def delete(self, opened: Log, log_dir: LogDir) -> None:
        """Rename the directory at once, which frees its name, and remove the files in a thread."""
        self.has_outdated_checkpoints = True
        self.directories.count_partition(log_dir, -1)
        if log_dir.failure is not None:
            return
        try:
            path = opened.delete_directory(new_uuid(self._random).hex())
        except OSError as error:
            log.error(
                "%s could not be deleted: %s; delete its directory after the next stop", opened.topic_partition, error
            )
        else:
            self.in_thread(log_dir.files.remove, path)

    def in_thread(self, work: Callable[..., None], *args: str) -> None:
        """Run `work` in a thread without waiting for it; errors are only logged."""

        def done(future: asyncio.Future[None]) -> None:
            self._in_threads.pop(future, None)
            error = None if future.cancelled() else future.exception()
            if error is not None:
                log.error("%s could not be removed: %s", " ".join(args), error)

        future = self._loop.run_in_executor(None, work, *args)
        self._in_threads[future] = None
        future.add_done_callback(done)


def _open(
    files: Files, directory: str, name: TopicPartition, config: LogConfig, *, must_have_owner: bool, **options: Any
) -> OpenedLog:
    if must_have_owner:
        require_owner(files, directory)
    opened, report = Log.open(files, directory, name, config, **options)
    if config.flush_messages < LONG_MAX and opened.log_end > opened.recovery_point:
        # Records of a killed run may be in the page cache only, and it is unknown which of them were acknowledged: none may be
        # read before they are on disk.
        plan = opened.pending_sync()
        if plan is not None:
            plan.run()
            opened.synced(plan)
    return opened, report


def _attempt(opening: Callable[[], OpenedLog]) -> OpenedLog | Exception:
    """Return the opened log, or the exception: one bad log, even a broken invariant, must not keep others closed."""
    try:
        return opening()
    except Exception as error:
        return error
