"""The data directories of a node: lock, identity, logs and checkpoints.

.lock  meta.properties  .kafka_cleanshutdown  *-checkpoint  <topic>-<partition>/ …
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from headrace.base.errors import ConfigError
from headrace.base.ids import METADATA_TOPIC, NodeId, TopicPartition, Uuid, uuid_text
from headrace.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    CorruptCheckpoint,
    MetaProperties,
    encode_clean_shutdown,
    encode_meta_properties,
    read_clean_shutdown,
    read_meta_properties,
    read_offsets,
    write_offsets,
)
from headrace.storage.files import Files, write_atomically
from headrace.storage.names import DELETE_DIR_SUFFIX, FUTURE_DIR_SUFFIX, STRAY_DIR_SUFFIX, parse_partition_dir

LOCK_FILE = ".lock"
METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
OFFSET_CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT, CLEANER_CHECKPOINT)


class DirContents(NamedTuple):
    """The paths in a data directory, classified by Kafka's naming rules."""

    partitions: dict[TopicPartition, str]  # log directories; without the metadata log, which the quorum opens
    deleted: list[str]  # log directories that were renamed for removal
    ignored: list[str]  # future logs, stray logs and anything that is not a log


class LogDir:
    """A data directory, locked against other nodes from `open` to `close`."""

    def __init__(self, files: Files, path: str, meta: MetaProperties | None, lock: ExitStack) -> None:
        self.files = files
        self.path = path
        self.meta = meta
        self._lock = lock
        self.was_clean = False  # whether the last run closed all logs in this directory
        self.failure: str | None = None  # the reason, once the disk has failed; the directory is then no longer used
        self.checkpoint_damage: list[str] = []

    @classmethod
    def open(cls, files: Files, path: str) -> LogDir:
        """Create the directory if it is missing, lock it and read its identity.

        Raise ConfigError if another node has locked it and CorruptCheckpoint if meta.properties is invalid.
        """
        files.make_dirs(path)
        lock = ExitStack()
        try:
            lock.enter_context(files.lock(f"{path}/{LOCK_FILE}"))
        except BlockingIOError as error:
            raise ConfigError(f"log.dirs: {path} is in use by another node") from error
        try:
            meta = read_meta_properties(files, f"{path}/{META_PROPERTIES}")
        except BaseException:
            lock.close()
            raise
        return cls(files, path, meta, lock)

    def close(self) -> None:
        self._lock.close()

    def format(self, meta: MetaProperties) -> None:
        """Write the identity of the directory. Raise ConfigError if it is already formatted."""
        if self.meta is not None:
            raise ConfigError(f"log.dirs: {self.path} is already formatted for cluster {self.meta.cluster_id}")
        write_atomically(self.files, f"{self.path}/{META_PROPERTIES}", encode_meta_properties(meta))
        self.meta = meta

    def contents(self) -> DirContents:
        partitions: dict[TopicPartition, str] = {}
        deleted, ignored = [], []
        for name in self.files.list_dir(self.path):
            path = f"{self.path}/{name}"
            key = parse_partition_dir(name)
            if name.endswith(DELETE_DIR_SUFFIX):
                deleted.append(path)
            elif key is None or name.endswith((FUTURE_DIR_SUFFIX, STRAY_DIR_SUFFIX)):
                ignored.append(path)
            elif key != METADATA_PARTITION:
                partitions[key] = path
        return DirContents(partitions, deleted, ignored)

    def partition_path(self, topic_partition: TopicPartition) -> str:
        return f"{self.path}/{topic_partition}"

    def remove_deleted(self) -> list[str]:
        deleted = self.contents().deleted
        for path in deleted:
            self.files.remove(path)
        return deleted

    def load_offsets(self, checkpoint: str) -> dict[TopicPartition, int]:
        """Return the offsets of a checkpoint.

        An invalid file counts as empty and is noted in `checkpoint_damage`: its offsets can be recomputed from the logs.
        """
        try:
            return read_offsets(self.files, f"{self.path}/{checkpoint}")
        except CorruptCheckpoint as error:
            self.checkpoint_damage.append(str(error))
            return {}

    def write_offsets(self, checkpoint: str, offsets: Mapping[TopicPartition, int]) -> None:
        assert checkpoint in OFFSET_CHECKPOINTS, checkpoint
        write_offsets(self.files, f"{self.path}/{checkpoint}", offsets)

    def take_clean_shutdown(self) -> int | None:
        """Return the broker epoch of the last shutdown if it was clean, else None.

        The marker is removed, so that a crash from now on counts as unclean.
        """
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        broker_epoch = read_clean_shutdown(self.files, path)
        self.was_clean = broker_epoch is not None
        if broker_epoch is not None:
            self.files.remove(path)
            self.files.sync_dir(self.path)
        return broker_epoch

    def mark_clean_shutdown(self, broker_epoch: int) -> None:
        """Write the marker of a clean shutdown, AFTER all logs were closed and all checkpoints written."""
        write_atomically(self.files, f"{self.path}/{CLEAN_SHUTDOWN}", encode_clean_shutdown(broker_epoch))


def open_log_dirs(
    files: Files,
    paths: Sequence[str],
    *,
    node_id: NodeId | None = None,
    cluster_id: str | None = None,
    on_failure: Callable[[str, OSError], None] | None = None,
) -> list[LogDir]:
    """Open and lock all directories and check that they belong to one node of one cluster.

    A directory that cannot be opened is passed to `on_failure` and left out; without `on_failure` the OSError is raised. Raise
    ConfigError if a directory does not match. After any exception no directory stays locked.
    """
    if not paths or len(set(paths)) != len(paths):
        raise ConfigError(f"log.dirs: {list(paths)} must name at least one directory, and each once")
    opened: list[LogDir] = []
    try:
        for path in paths:
            try:
                opened.append(LogDir.open(files, path))
            except OSError as error:
                if on_failure is None:
                    raise
                on_failure(path, error)
        _check_identity(opened, node_id, cluster_id)
    except BaseException:
        close_log_dirs(opened)
        raise
    return opened


def open_usable_log_dirs(
    files: Files, paths: Sequence[str], metadata_dir: str, *, node_id: NodeId
) -> tuple[list[LogDir], dict[str, OSError]]:
    """Open the usable directories of a starting node; return them and the errors of the others.

    Raise ConfigError if the directory of the metadata log cannot be used: the node cannot start without it.
    """
    failed: dict[str, OSError] = {}

    def record_failure(path: str, error: OSError) -> None:
        if path == metadata_dir:
            why = (
                f"metadata.log.dir: {path} cannot be used ({error.strerror or error}); the node cannot start without it"
            )
            raise ConfigError(why) from error
        failed[path] = error

    # A missing directory may be an unmounted disk, so a formatted node does not create it. An operator can create a new one.
    known = any(files.exists(f"{path}/{META_PROPERTIES}") for path in paths)
    missing = [path for path in paths if known and not files.exists(path)]
    for path in missing:
        record_failure(path, FileNotFoundError(errno.ENOENT, "it does not exist", path))
    available = [path for path in paths if path not in failed]
    return open_log_dirs(files, available, node_id=node_id, on_failure=record_failure), failed


def close_log_dirs(log_dirs: Iterable[LogDir]) -> None:
    for log_dir in log_dirs:
        log_dir.close()


def _check_identity(log_dirs: Sequence[LogDir], node_id: NodeId | None, cluster_id: str | None) -> None:
    seen: dict[Uuid, str] = {}
    for log_dir in log_dirs:
        meta = log_dir.meta
        if meta is None:
            continue
        if node_id is not None and meta.node_id != node_id:
            raise ConfigError(f"log.dirs: {log_dir.path} belongs to node {meta.node_id}, this is node {node_id}")
        if cluster_id is not None and meta.cluster_id != cluster_id:
            raise ConfigError(f"log.dirs: {log_dir.path} belongs to cluster {meta.cluster_id}, not to {cluster_id}")
        if meta.directory_id in seen:
            both = f"{seen[meta.directory_id]} and {log_dir.path}"
            raise ConfigError(f"log.dirs: {both} have the same directory id {uuid_text(meta.directory_id)}")
        seen[meta.directory_id] = log_dir.path
        node_id, cluster_id = meta.node_id, meta.cluster_id
