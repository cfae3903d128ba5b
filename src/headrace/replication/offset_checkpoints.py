"""The offset checkpoints of all partitions: read once at startup, written for each directory while the node runs.

Log starts are written BEFORE recovery points: a recovery point may be where it is only because the log starts there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.base.ids import TopicPartition
from headrace.replication.partition import Partition
from headrace.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from headrace.storage.log_dirs import LogDir

ALL_CHECKPOINTS = (LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, CLEANER_CHECKPOINT)


class StoredOffsets:
    """The checkpoints that the last run left."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[TopicPartition, int]] = {kind: {} for kind in ALL_CHECKPOINTS}

    def load(self, log_dir: LogDir) -> None:
        for kind in ALL_CHECKPOINTS:
            self._offsets[kind].update(log_dir.load_offsets(kind))

    @property
    def names(self) -> set[TopicPartition]:
        return {name for offsets in self._offsets.values() for name in offsets}

    def get(self, kind: str, name: TopicPartition) -> int:
        return self._offsets[kind].get(name, 0)

    def of(self, kind: str, names: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        stored = self._offsets[kind]
        return {name: stored[name] for name in names if name in stored}


def write_checkpoint(
    log_dir: LogDir, kind: str, partitions: Sequence[Partition], unopened: Mapping[TopicPartition, int]
) -> None:
    """Write one checkpoint of a directory; `unopened` has the stored offsets of logs that are not open.

    Call this in a thread: with ten thousand partitions even collecting the offsets takes long.
    """
    offsets = dict(unopened)
    for partition in partitions:
        log = partition.log
        if kind == RECOVERY_POINT_CHECKPOINT:
            offsets[partition.name] = log.recovery_point
        elif kind == HIGH_WATERMARK_CHECKPOINT:
            offsets[partition.name] = partition.high_watermark
        elif kind == CLEANER_CHECKPOINT:
            if log.cleaned_to > log.segments.first.base_offset:
                offsets[partition.name] = log.cleaned_to
        elif log.log_start > log.segments.first.base_offset:
            offsets[partition.name] = log.log_start
    log_dir.write_offsets(kind, offsets)
