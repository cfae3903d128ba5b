"""The data directories of a running node: which one takes a new partition, and which have failed.

A directory that fails takes its partitions with it and nothing else. Where a replica lies is written in the metadata log, so that after
a restart without the disk nobody makes an empty log in the place of a lost one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import ZERO_UUID, NodeId, TopicPartition, Uuid, uuid_text
from headrace.metadata.image import MIGRATING, UNASSIGNED
from headrace.metadata.image import Partition as PartitionState
from headrace.storage.log_dirs import LogDir


class StorageFailed(HeadraceError):
    """The directory of the metadata log has failed, or all of them, or nobody can be told: this node must stop."""


class Directories:
    def __init__(
        self,
        log_dirs: Sequence[LogDir],
        metadata_dir: str,
        *,
        missing: Mapping[str, OSError] | None = None,
        cordoned: Collection[str] = (),
    ) -> None:
        """`missing` could not be opened when the node started; `cordoned` take no new partitions (`*`: none of them does)."""
        self._log_dirs = list(log_dirs)
        self._metadata_dir = metadata_dir
        self.missing = {path: f"{path} cannot be used ({_text(error)})" for path, error in (missing or {}).items()}
        self._cordoned = frozenset(cordoned)
        self.may_cordon: Callable[[], bool] = lambda: True  # whether the cluster's metadata.version knows of cordoning
        self._counts = {log_dir.path: 0 for log_dir in log_dirs}

    def all(self) -> list[LogDir]:
        """Those that could be opened, in the order of the settings."""
        return list(self._log_dirs)

    def online(self) -> list[LogDir]:
        return [log_dir for log_dir in self._log_dirs if log_dir.failure is None]

    def online_ids(self) -> list[Uuid]:
        return [log_dir.meta.directory_id for log_dir in self.online() if log_dir.meta is not None]

    def cordon(self, paths: Collection[str]) -> bool:
        """From here on these; True if that is a change, which the controller has to hear of."""
        before, self._cordoned = self._cordoned, frozenset(paths)
        return before != self._cordoned

    def is_cordoned(self, log_dir: LogDir) -> bool:
        return (log_dir.path in self._cordoned or "*" in self._cordoned) and self.may_cordon()

    def ignores_cordons(self) -> bool:
        """Return whether directories were cordoned in vain."""
        return bool(self._cordoned) and not self.may_cordon()

    def cordoned_ids(self) -> list[Uuid]:
        return [d.meta.directory_id for d in self.online() if d.meta is not None and self.is_cordoned(d)]

    def offline_ids(self) -> list[Uuid]:
        """Of directories that failed since they were registered."""
        return [log_dir.meta.directory_id for log_dir in self._log_dirs if log_dir.failure and log_dir.meta]

    def offline_count(self) -> int:
        return len(self.missing) + len(self._log_dirs) - len(self.online())

    def fail(self, log_dir: LogDir, error: OSError) -> StorageFailed | None:
        """Notes the failure; an exception, to be raised where the node's life is decided, if it cannot go on without it."""
        log_dir.failure = f"{log_dir.path} has failed ({_text(error)})"
        if log_dir.path == self._metadata_dir:
            return StorageFailed(f"{log_dir.failure}, and with it the metadata log")
        if not self.online():
            return StorageFailed(f"{log_dir.failure}, and there is no other of log.dirs left")
        return None

    def holds(self, log_dir: LogDir, by: int = 1) -> None:
        """A partition more, or with -1 one less."""
        self._counts[log_dir.path] += by

    def place(self, name: TopicPartition, state: PartitionState, node_id: NodeId, *, is_new: bool) -> LogDir:
        """The directory for a log that is nowhere yet. KafkaError KAFKA_STORAGE_ERROR if it should be somewhere, and is not."""
        wanted = state.directory(node_id)
        known = next((d for d in self._log_dirs if d.meta is not None and d.meta.directory_id == wanted), None)
        # Where it is not known, it may lie in one that cannot be looked into.
        gone = next(iter([*self.missing.values(), *(d.failure for d in self._log_dirs if d.failure)]), None)
        if known is not None:
            if known.failure is not None:
                raise _offline(name, known.failure)
            if gone is not None and not is_new:
                # A move that was cut off: metadata hears of the new place BEFORE the log is there.
                raise _offline(name, f"{gone}, and it does not lie in {known.path}, where it should")
            return known
        if wanted in (None, UNASSIGNED, MIGRATING):
            if gone is not None and not is_new:
                raise _offline(name, gone)
        elif gone is not None or len(state.replicas) == 1:
            # Nobody else has its records: rather no partition than an empty one that looks like it.
            why = gone or f"it lies in directory {uuid_text(wanted or ZERO_UUID)}, which is none of log.dirs"
            raise _offline(name, f"{why}; bring it back, or delete the topic to go on without its records")
        return self._roomiest()

    def _roomiest(self) -> LogDir:
        """The one with the fewest partitions, as Kafka chooses."""
        online = self.online()
        if not online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "all of log.dirs have failed")
        allowed = [log_dir for log_dir in online if not self.is_cordoned(log_dir)]
        return min(allowed or online, key=lambda log_dir: self._counts[log_dir.path])


def _offline(name: TopicPartition, why: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} is offline: {why}")


def _text(error: OSError) -> str:
    return error.strerror or str(error)
