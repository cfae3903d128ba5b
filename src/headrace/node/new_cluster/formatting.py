"""Formats data directories: meta.properties, the first records of a new cluster (bootstrap.checkpoint), and its first voters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from msgspec import Struct

from headrace.base.errors import ConfigError
from headrace.base.ids import NodeId, new_uuid, uuid_text
from headrace.node.new_cluster.feature_levels import METADATA, SCRAM_LEVEL, feature_levels, release_name
from headrace.node.new_cluster.initial_voters import directory_in
from headrace.protocol.messages.stored.metadata_cluster import FeatureLevelRecord
from headrace.protocol.messages.stored.metadata_security import UserScramCredentialRecord
from headrace.quorum.log import decode_metadata
from headrace.quorum.snapshots import SnapshotFiles, SnapshotId, snapshot_batches
from headrace.quorum.voter_records import VoterRecords
from headrace.raft.membership import DYNAMIC_KRAFT_VERSION
from headrace.raft.voters import VoterSet
from headrace.security.scram_arguments import ScramUser
from headrace.storage.checkpoints import MetaProperties
from headrace.storage.files import Files, read_all, write_atomically
from headrace.storage.log_dirs import METADATA_PARTITION, LogDir

BOOTSTRAP_FILE = "bootstrap.checkpoint"
BOOTSTRAP_BYTES_MAX = 16 << 20


def new_cluster_id(random: Random) -> str:
    return uuid_text(new_uuid(random))


class FirstMetadata(Struct, frozen=True):
    """What the metadata of a new cluster begins with.

    `records` are written by the first controller; by default, they set the newest levels of all features. `voters` are the voters of
    a dynamic quorum, one of which is this node; without them, the quorum is static, or this node joins one that exists.
    """

    records: Sequence[Any] | None = None
    voters: VoterSet | None = None


def format_log_dirs(
    log_dirs: Sequence[LogDir],
    metadata_dir: str,
    node_id: NodeId,
    cluster_id: str,
    now_ms: int,
    random: Random,
    first: FirstMetadata = FirstMetadata(),  # noqa: B008 -- immutable
) -> None:
    """Format the directories that are not formatted yet. Raise ConfigError if one of them contains logs."""
    for log_dir in log_dirs:
        if log_dir.meta is None:
            if log_dir.contents().partitions:
                raise ConfigError(
                    f"log.dirs: {log_dir.path} has logs but no meta.properties, so their cluster and node are unknown"
                )
            directory_id = new_uuid(random)
            if log_dir.path == metadata_dir:
                data = encode_bootstrap(bootstrap_records() if first.records is None else first.records, now_ms)
                write_atomically(log_dir.files, f"{log_dir.path}/{BOOTSTRAP_FILE}", data)
                if first.voters is not None:
                    _write_voters(log_dir, first.voters, now_ms)
                    directory_id = directory_in(first.voters, node_id)
            log_dir.format(MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id))


def _write_voters(log_dir: LogDir, voters: VoterSet, now_ms: int) -> None:
    """Write the voters as a snapshot of the empty metadata log; the first leader copies them into the log."""
    directory = f"{log_dir.path}/{METADATA_PARTITION}"
    log_dir.files.make_dirs(directory)
    control = VoterRecords(DYNAMIC_KRAFT_VERSION, voters).control()
    snapshots = SnapshotFiles(log_dir.files, directory)
    snapshots.write(SnapshotId(0, 0), snapshot_batches([], 0, now_ms, last_timestamp=0, control=control))


def bootstrap_records(levels: Mapping[str, int] | None = None, users: Sequence[ScramUser] = ()) -> list[Any]:
    """Return the first records of a new cluster with these feature levels and users."""
    levels = feature_levels() if levels is None else levels
    if users and levels[METADATA] < SCRAM_LEVEL:
        raise ConfigError(
            f"--add-scram needs {METADATA} {release_name(SCRAM_LEVEL)} or newer, not {release_name(levels[METADATA])}"
        )
    features = [FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items()]
    return [*features, *map(_scram_record, users)]


def _scram_record(user: ScramUser) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=user.name,
        mechanism=user.mechanism,
        salt=user.credential.salt,
        stored_key=user.credential.stored_key,
        server_key=user.credential.server_key,
        iterations=user.credential.iterations,
    )


def encode_bootstrap(records: Sequence[Any], now_ms: int) -> bytes:
    """Encode the records as a snapshot of an empty log."""
    return b"".join(snapshot_batches(records, 0, now_ms, last_timestamp=0))


def read_bootstrap(files: Files, metadata_dir: str) -> list[Any]:
    """Return the records that `format` (Headrace's or Kafka's) wrote for the first controller, or else the defaults."""
    path = f"{metadata_dir}/{BOOTSTRAP_FILE}"
    if not files.exists(path):
        return bootstrap_records()
    data = read_all(files, path, BOOTSTRAP_BYTES_MAX)
    return [record for batch in decode_metadata(data) for record in batch.records]
