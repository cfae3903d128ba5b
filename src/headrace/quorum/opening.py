"""Opens the stored metadata when a node starts: the log, the newest complete snapshot, and the voters in both."""

from __future__ import annotations

import logging

from msgspec import Struct

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData
from headrace.base.ids import METADATA_TOPIC_ID, TopicPartition
from headrace.quorum.log import MetadataLog
from headrace.quorum.snapshots import SnapshotFiles, SnapshotId
from headrace.quorum.voter_records import VoterRecords, changes, control_records_in
from headrace.raft.membership import VoterHistory
from headrace.raft.voters import VoterSet
from headrace.records.control import ControlRecord
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.log_dirs import METADATA_PARTITION

log = logging.getLogger(__name__)


class StoredMetadata(Struct):
    """The metadata on disk. `voters` applies at the end of the log, `voter_sets` has all sets with their offsets."""

    log: MetadataLog
    snapshots: SnapshotFiles
    newest: SnapshotId | None
    voters: VoterRecords
    voter_sets: list[tuple[int, VoterSet]]

    @property
    def first_offset(self) -> int:
        """Return the offset from which the log, not the snapshot, has the records."""
        return self.log.log.log_start if self.newest is None else self.newest.end_offset

    def history(self, configured: VoterSet) -> VoterHistory:
        """Return the voter sets by offset; `configured` applies as long as the log has none."""
        history = VoterHistory(configured)
        for offset, voters in self.voter_sets:
            history.append(offset, voters) if offset > history.last_offset else history.reset(offset, voters)
        return history

    def first_control(self) -> list[ControlRecord]:
        """Return the voters that were chosen when the node was formatted, if the log is still empty."""
        return [] if self.log.end_offset else self.voters.control()


def open_metadata(files: Files, directory: str, segment_bytes: int, segment_ms: int, clock: Clock) -> StoredMetadata:
    """Open log and snapshots; raise CorruptData if records are missing: no complete snapshot reaches the log start."""
    # Only snapshots allow the log to be deleted, neither time nor size does.
    config = LogConfig(segment_bytes=segment_bytes, segment_ms=segment_ms, cleanup_policy=())
    snapshots = SnapshotFiles(files, directory)
    opened, report = Log.open(
        files,
        directory,
        TopicPartition(*METADATA_PARTITION),
        config,
        topic_id=METADATA_TOPIC_ID,
        now_ms=clock.now_ms(),
    )
    for message in report.messages():
        log.warning("recovery of the metadata log: %s", message)
    _sync(opened)
    newest = _newest_complete(snapshots)
    if opened.log_start > (newest.end_offset if newest is not None else 0):
        raise CorruptData(
            f"the log in {directory} begins at offset {opened.log_start}, and no complete snapshot reaches that offset: "
            "restore one, or format a new node"
        )
    if newest is not None and not _reaches(opened, newest):
        log.warning(
            "the metadata log does not contain the last record of the snapshot at offset %d; continuing the log from there",
            newest.end_offset,
        )
        opened.truncate_fully_and_start_at(newest.end_offset, clock.now_ms())
    voters, voter_sets = VoterRecords(), list[tuple[int, VoterSet]]()
    if newest is not None:
        voters = voters.after(snapshots.control_of(newest))
        if voters.voters is not None:
            voter_sets.append((newest.end_offset - 1, voters.voters))
    metadata_log = MetadataLog(opened, clock)
    start = opened.log_start if newest is None else newest.end_offset
    for offset, found in changes(voters, control_records_in(metadata_log, start)):
        if found.voters is not None and found.voters is not voters.voters:
            voter_sets.append((offset, found.voters))
        voters = found
    return StoredMetadata(metadata_log, snapshots, newest, voters, voter_sets)


def _sync(opened: Log) -> None:
    """Make durable what a killed process has written but not synced: the log, and the name of a new quorum-state file.

    Raft counts everything that it finds on the disk as durable.
    """
    plan = opened.pending_sync()
    if plan is not None:
        plan.run()
        opened.synced(plan)


def _reaches(opened: Log, snapshot: SnapshotId) -> bool:
    """Return whether the log continues the snapshot: it has the snapshot's last record, or begins right after it.

    Otherwise a crash interrupted the installation of a snapshot from the leader, and the log may end with records that no
    majority has.
    """
    end = snapshot.end_offset
    if opened.log_end < end:
        return False
    return opened.log_start >= end or opened.epochs.epoch_for(end - 1) == snapshot.epoch


def _newest_complete(snapshots: SnapshotFiles) -> SnapshotId | None:
    for snapshot in reversed(snapshots.ids):
        try:
            snapshots.check(snapshot)
        except CorruptData as error:
            log.error("ignoring the metadata snapshot %s: %s", snapshots.path(snapshot), error)
        else:
            snapshots.ids = [one for one in snapshots.ids if one <= snapshot]
            return snapshot
    snapshots.ids = []
    return None
