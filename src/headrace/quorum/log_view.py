"""The metadata log and its snapshots as raft sees them."""

from __future__ import annotations

from headrace.quorum.log import MetadataLog
from headrace.quorum.snapshots import SnapshotFiles
from headrace.raft.log_view import LogPoint


class MetadataLogView:
    """Implements `headrace.raft.log_view.LogView` from the leader epochs in memory."""

    def __init__(self, log: MetadataLog, snapshots: SnapshotFiles) -> None:
        self._log = log.log
        self._snapshots = snapshots

    @property
    def start_offset(self) -> int:
        return self._log.log_start

    @property
    def end_offset(self) -> int:
        return self._log.log_end

    @property
    def last_epoch(self) -> int:
        if self._log.epochs.latest >= 0:
            return self._log.epochs.latest
        snapshot = self.snapshot
        return 0 if snapshot is None else snapshot.epoch

    @property
    def snapshot(self) -> LogPoint | None:
        newest = self._snapshots.newest
        return None if newest is None else LogPoint(newest.epoch, newest.end_offset)

    def epoch_end(self, epoch: int) -> LogPoint:
        epochs = self._log.epochs
        if epochs.latest >= 0:
            if epoch >= epochs.latest:
                return LogPoint(epochs.latest, self.end_offset)
            found = epochs.end_offset_for(epoch, self.end_offset)
            if any(entry.epoch == found.epoch for entry in epochs.entries()):
                return LogPoint(found.epoch, found.end_offset)
        snapshot = self.snapshot
        if snapshot is not None and snapshot.epoch <= epoch:
            return snapshot
        return LogPoint(0, self.start_offset)
