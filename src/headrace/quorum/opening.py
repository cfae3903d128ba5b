"""Opens the stored metadata when a node starts: the log, the newest complete snapshot, and the voters in both."""

from __future__ import annotations

import logging

from msgspec import Struct

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData
from headrace.base.ids import METADATA_TOPIC_ID, TopicPartition
from headrace.quorum.log import MetadataLog
from headrace.quorum.snapshots import SnapshotFiles, SnapshotId
from headrace.quorum.voter_records import VoterRecords, voters_in_log
from headrace.records.control import ControlRecord
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.log_dirs import METADATA_PARTITION

log = logging.getLogger(__name__)


class StoredMetadata(Struct):
    log: MetadataLog
    snapshots: SnapshotFiles
    newest: SnapshotId | None
    voters: VoterRecords

    @property
    def first_offset(self) -> int:
        """Return the offset from which the log, not the snapshot, has the records."""
        return self.log.log.log_start if self.newest is None else self.newest.end_offset

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
    newest = _newest_complete(snapshots)
    if opened.log_start > (newest.end_offset if newest is not None else 0):
        raise CorruptData(
            f"the log in {directory} begins at offset {opened.log_start}, and no complete snapshot reaches that offset: "
            "restore one, or format a new node"
        )
    if newest is not None and opened.log_end < newest.end_offset:
        log.warning(
            "the metadata log ends before the snapshot at offset %d; continuing the log from there", newest.end_offset
        )
        opened.truncate_fully_and_start_at(newest.end_offset, clock.now_ms())
    voters = VoterRecords()
    if newest is not None:
        voters = voters.after(snapshots.control_of(newest))
    metadata_log = MetadataLog(opened, clock)
    start = max(opened.log_start, newest.end_offset if newest is not None else 0)
    return StoredMetadata(metadata_log, snapshots, newest, voters_in_log(metadata_log, start, voters))


def _newest_complete(snapshots: SnapshotFiles) -> SnapshotId | None:
    for snapshot in reversed(snapshots.ids):
        try:
            snapshots.check(snapshot)
        except CorruptData as error:
            log.error("ignoring a metadata snapshot: %s", error)
        else:
            snapshots.ids = [one for one in snapshots.ids if one <= snapshot]
            return snapshot
    snapshots.ids = []
    return None
