"""The data directories of a running node: which one takes a new partition, and which have failed.

A failed directory takes only its own partitions offline. The metadata log records the directory of each replica, so that after
a restart without the disk no empty log is created in place of a lost one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import ZERO_UUID, NodeId, TopicPartition, Uuid, uuid_text
from headrace.metadata.image import MIGRATING, UNASSIGNED
from headrace.metadata.image import Partition as PartitionState
from headrace.storage.log_dirs import LogDir


class StorageFailed(HeadraceError):
    """Raised to stop the node: a failed directory had the metadata log, was the last one or cannot be reported."""


class Directories:
    def __init__(
        self,
        log_dirs: Sequence[LogDir],
        metadata_dir: str,
        *,
        missing: Mapping[str, OSError] | None = None,
        cordoned: Collection[str] = (),
    ) -> None:
        """Start with the directories that could be opened; `missing` has the errors of the others.

        `cordoned` directories take no new partitions; `*` stands for all of them.
        """
        self._log_dirs = list(log_dirs)
        self._metadata_dir = metadata_dir
        self.missing = {path: f"{path} cannot be used ({_text(error)})" for path, error in (missing or {}).items()}
        self._cordoned = frozenset(cordoned)
        self.may_cordon: Callable[[], bool] = lambda: True  # whether the cluster's metadata.version supports cordoning
        self._counts = {log_dir.path: 0 for log_dir in log_dirs}

    def all(self) -> list[LogDir]:
        """Return the directories that could be opened, in the order of log.dirs."""
        return list(self._log_dirs)

    def online(self) -> list[LogDir]:
        return [log_dir for log_dir in self._log_dirs if log_dir.failure is None]

    def online_ids(self) -> list[Uuid]:
        return [log_dir.meta.directory_id for log_dir in self.online() if log_dir.meta is not None]

    @property
    def metadata_directory_id(self) -> Uuid:
        """Return the id of the directory with the metadata log, which a node cannot start without."""
        return next(one.meta.directory_id for one in self._log_dirs if one.path == self._metadata_dir and one.meta)

    def cordon(self, paths: Collection[str]) -> bool:
        """Replace the set of cordoned directories; return True if it changed, which must be reported to the controller."""
        before, self._cordoned = self._cordoned, frozenset(paths)
        return before != self._cordoned

    def is_cordoned(self, log_dir: LogDir) -> bool:
        return (log_dir.path in self._cordoned or "*" in self._cordoned) and self.may_cordon()

    def ignores_cordons(self) -> bool:
        """Return whether directories are cordoned but the cluster does not support it."""
        return bool(self._cordoned) and not self.may_cordon()

    def cordoned_ids(self) -> list[Uuid]:
        return [d.meta.directory_id for d in self.online() if d.meta is not None and self.is_cordoned(d)]

    def offline_ids(self) -> list[Uuid]:
        """Return the ids of the directories that have failed since the node started."""
        return [log_dir.meta.directory_id for log_dir in self._log_dirs if log_dir.failure and log_dir.meta]

    def offline_count(self) -> int:
        return len(self.missing) + len(self._log_dirs) - len(self.online())

    def fail(self, log_dir: LogDir, error: OSError) -> StorageFailed | None:
        """Mark a directory as failed; return the exception to stop the node with if it cannot run without it."""
        log_dir.failure = f"{log_dir.path} has failed ({_text(error)})"
        if log_dir.path == self._metadata_dir:
            return StorageFailed(f"{log_dir.failure}, and the metadata log is in it")
        if not self.online():
            return StorageFailed(f"{log_dir.failure}, and no other directory of log.dirs is left")
        return None

    def count_partition(self, log_dir: LogDir, by: int = 1) -> None:
        """Add `by` to the number of partitions in a directory."""
        self._counts[log_dir.path] += by

    def directory_for(self, name: TopicPartition, state: PartitionState, node_id: NodeId, *, is_new: bool) -> LogDir:
        """Return the directory for a log that was not found in any.

        Raise KafkaError KAFKA_STORAGE_ERROR if the log should exist.
        """
        assigned = state.directory(node_id)
        known = next((d for d in self._log_dirs if d.meta is not None and d.meta.directory_id == assigned), None)
        # A log that was not found may be in a directory that cannot be read.
        unreadable = next(iter([*self.missing.values(), *(d.failure for d in self._log_dirs if d.failure)]), None)
        if known is not None:
            if known.failure is not None:
                raise _offline(name, known.failure)
            if unreadable is not None and not is_new:
                # An interrupted move: metadata records the new directory BEFORE the log is moved there.
                raise _offline(name, f"{unreadable}, and the log is not in {known.path}, where metadata expects it")
            return known
        if assigned in (None, UNASSIGNED, MIGRATING):
            if unreadable is not None and not is_new:
                raise _offline(name, unreadable)
        elif unreadable is not None or len(state.replicas) == 1:
            # There may be no other copy of its records: an offline partition is better than an empty one.
            why = unreadable or f"its directory {uuid_text(assigned or ZERO_UUID)} is not in log.dirs"
            raise _offline(name, f"{why}; restore the directory, or delete the topic to continue without its records")
        return self._least_used()

    def _least_used(self) -> LogDir:
        """Return the directory with the fewest partitions, as Kafka does, that is not cordoned if possible."""
        online = self.online()
        if not online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "all of log.dirs have failed")
        allowed = [log_dir for log_dir in online if not self.is_cordoned(log_dir)]
        return min(allowed or online, key=lambda log_dir: self._counts[log_dir.path])


def _offline(name: TopicPartition, why: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} is offline: {why}")


def _text(error: OSError) -> str:
    return error.strerror or str(error)
