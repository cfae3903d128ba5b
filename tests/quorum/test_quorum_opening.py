"""Opening the files of a replica of the metadata log: what raft finds on the disk is durable, because raft counts it as such."""

from __future__ import annotations

from random import Random

from testkit.simulator.disk import SimulatedFiles
from tests.fakes import FakeClock

from headrace.base.ids import NodeId
from headrace.protocol.messages.stored.metadata_cluster import NoOpRecord
from headrace.quorum.opening import StoredMetadata, open_metadata
from headrace.quorum.store import ElectionStore
from headrace.raft.effects import ElectionState
from headrace.raft.voters import ReplicaKey

DIRECTORY = "/data/__cluster_metadata-0"
SEEDS = 20  # each loses another part of what is not synced


def new_disk(seed: int) -> SimulatedFiles:
    files = SimulatedFiles(Random(seed))
    files.make_dirs(DIRECTORY)
    files.sync_dir("/")
    files.sync_dir("/data")
    return files


def open_on(files: SimulatedFiles) -> StoredMetadata:
    return open_metadata(files, DIRECTORY, 200, 1 << 40, FakeClock(1))


def test_records_that_a_killed_process_did_not_sync_are_durable_when_the_log_is_opened_again() -> None:
    for seed in range(SEEDS):
        files = new_disk(seed)
        metadata_log = open_on(files).log
        for _ in range(5):
            metadata_log.append([NoOpRecord()], 1)
        assert len(metadata_log.log.segments) > 1
        files.process_crash()
        found = open_on(files).log.end_offset
        files.power_loss()
        assert open_on(files).log.end_offset == found == 5


def test_a_vote_that_a_killed_process_had_renamed_is_durable_when_the_files_are_opened_again() -> None:
    vote = ElectionState(3, voted_for=ReplicaKey(NodeId(2)))
    for seed in range(SEEDS):
        files = new_disk(seed)
        open_on(files)
        store = ElectionStore(files, DIRECTORY, [NodeId(1), NodeId(2)])

        def fail_to_sync_names(operation: str, path: str) -> OSError | None:
            return OSError("killed") if operation == "sync_dir" else None

        files.fault = fail_to_sync_names
        try:
            store.save(vote)
        except OSError:
            files.fault = None
        files.process_crash()
        open_on(files)
        assert store.load() == vote
        files.power_loss()
        assert store.load() == vote
