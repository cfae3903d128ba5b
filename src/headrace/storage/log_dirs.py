"""The data directories of a node: one owner each, who it belongs to, which logs it holds, its checkpoints.

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
    """Kafka's naming rules applied to a data directory."""

    partitions: dict[TopicPartition, str]  # paths; the metadata log is not among them: the quorum opens it
    deleted: list[str]  # renamed to be removed, but still there
    ignored: list[str]  # future and stray logs, and what is no log


class LogDir:
    """Held from `open` to `close`; nobody else can open it meanwhile."""

    def __init__(self, files: Files, path: str, meta: MetaProperties | None, lock: ExitStack) -> None:
        self.files = files
        self.path = path
        self.meta = meta
        self._lock = lock
        self.was_clean = False  # whether the last run closed every log in it
        self.failure: str | None = None  # what is wrong, once the disk has failed; nothing in it is touched any more
        self.checkpoint_damage: list[str] = []

    @classmethod
    def open(cls, files: Files, path: str) -> LogDir:
        """ConfigError if another node holds it; CorruptCheckpoint if meta.properties is garbage."""
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
        """ConfigError if it belongs to somebody already."""
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
        """Empty, and remembered as damage, if the file is garbage: all its offsets can be worked out again from the logs."""
        try:
            return read_offsets(self.files, f"{self.path}/{checkpoint}")
        except CorruptCheckpoint as error:
            self.checkpoint_damage.append(str(error))
            return {}

    def write_offsets(self, checkpoint: str, offsets: Mapping[TopicPartition, int]) -> None:
        assert checkpoint in OFFSET_CHECKPOINTS, checkpoint
        write_offsets(self.files, f"{self.path}/{checkpoint}", offsets)

    def take_clean_shutdown(self) -> int | None:
        """The broker epoch of the last shutdown if it was clean, else None. AFTERWARDS the marker is gone: a crash counts."""
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        broker_epoch = read_clean_shutdown(self.files, path)
        self.was_clean = broker_epoch is not None
        if broker_epoch is not None:
            self.files.remove(path)
            self.files.sync_dir(self.path)
        return broker_epoch

    def mark_clean_shutdown(self, broker_epoch: int) -> None:
        """AFTER every log was closed and every checkpoint written."""
        write_atomically(self.files, f"{self.path}/{CLEAN_SHUTDOWN}", encode_clean_shutdown(broker_epoch))


def open_log_dirs(
    files: Files,
    paths: Sequence[str],
    *,
    node_id: NodeId | None = None,
    cluster_id: str | None = None,
    on_failure: Callable[[str, OSError], None] | None = None,
) -> list[LogDir]:
    """All directories, locked, and of one node of one cluster; ConfigError says which one does not fit, and then none is held.

    With `on_failure` a directory that the disk refuses is told there and left out.
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


def open_living_dirs(
    files: Files, paths: Sequence[str], metadata_dir: str, *, node_id: NodeId
) -> tuple[list[LogDir], dict[str, OSError]]:
    """For a node that starts: the directories that can be used, and what is wrong with the others. ConfigError if the one with the
    metadata log is among those: without it there is no node."""
    failed: dict[str, OSError] = {}

    def note(path: str, error: OSError) -> None:
        if path == metadata_dir:
            why = f"metadata.log.dir: {path} cannot be used ({error.strerror or error}): without it this node cannot start"
            raise ConfigError(why) from error
        failed[path] = error

    # Made anew, the directory of a disk that is not mounted would take its place; somebody who adds one can make it himself.
    known = any(files.exists(f"{path}/{META_PROPERTIES}") for path in paths)
    missing = [path for path in paths if known and not files.exists(path)]
    for path in missing:
        note(path, FileNotFoundError(errno.ENOENT, "it does not exist", path))
    there = [path for path in paths if path not in failed]
    return open_log_dirs(files, there, node_id=node_id, on_failure=note), failed


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
            twin = f"{seen[meta.directory_id]} and {log_dir.path}"
            raise ConfigError(f"log.dirs: {twin} have the same directory id {uuid_text(meta.directory_id)}")
        seen[meta.directory_id] = log_dir.path
        node_id, cluster_id = meta.node_id, meta.cluster_id
