"""Making data directories: who they belong to, and what the first controller of a new cluster will write (bootstrap.checkpoint)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from headrace.base.errors import ConfigError
from headrace.base.ids import NodeId, new_uuid, uuid_text
from headrace.metadata.image import BROKER_CONFIG
from headrace.metadata.records import METADATA_VERSION_MAX, METADATA_VERSION_MIN
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord, FeatureLevelRecord
from headrace.protocol.messages.stored.metadata_security import UserScramCredentialRecord
from headrace.quorum.log import decode_metadata
from headrace.quorum.snapshots import snapshot_batches
from headrace.security.scram_arguments import ScramUser
from headrace.storage.checkpoints import MetaProperties
from headrace.storage.files import Files, read_all, write_atomically
from headrace.storage.log_dirs import LogDir

BOOTSTRAP_FILE = "bootstrap.checkpoint"
BOOTSTRAP_BYTES_MAX = 16 << 20

# The levels of a new cluster, and the ranges that this version can live with. Share and streams groups have none here yet, but a
# directory that Kafka wrote has theirs: they are kept, and say nothing about what is served.
FEATURE_LEVELS = {
    "metadata.version": METADATA_VERSION_MAX,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "transaction.version": 2,
}
SUPPORTED_FEATURES = {
    "metadata.version": (METADATA_VERSION_MIN, METADATA_VERSION_MAX),
    "eligible.leader.replicas.version": (0, 1),
    "group.version": (0, 1),
    "kraft.version": (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "transaction.version": (0, 2),
}


def new_cluster_id(chance: Random) -> str:
    return uuid_text(new_uuid(chance))


def format_log_dirs(
    log_dirs: Sequence[LogDir],
    metadata_dir: str,
    node_id: NodeId,
    cluster_id: str,
    now_ms: int,
    chance: Random,
    users: Sequence[ScramUser] = (),
) -> None:
    """Directories that belong to nobody yet become this node's; the others stay as they are. `users` exist from the beginning."""
    for log_dir in log_dirs:
        if log_dir.meta is None:
            if log_dir.contents().partitions:
                raise ConfigError(
                    f"log.dirs: {log_dir.path} holds logs but no meta.properties: whose they are is unknown"
                )
            if log_dir.path == metadata_dir:
                data = encode_bootstrap([*bootstrap_records(), *map(_scram_record, users)], now_ms)
                write_atomically(log_dir.files, f"{log_dir.path}/{BOOTSTRAP_FILE}", data)
            log_dir.format(MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=new_uuid(chance)))


def bootstrap_records() -> list[Any]:
    return [
        *(FeatureLevelRecord(name=name, feature_level=level) for name, level in FEATURE_LEVELS.items()),
        # With ELR the cluster-wide value must be written down, so that no two controllers disagree about it (KIP-966).
        ConfigRecord(resource_type=BROKER_CONFIG, resource_name="", name="min.insync.replicas", value="1"),
    ]


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
    """A snapshot of an empty log."""
    return b"".join(snapshot_batches(records, 0, now_ms, last_timestamp=0))


def read_bootstrap(files: Files, metadata_dir: str) -> list[Any]:
    """What `format` (ours or Kafka's) left for the first controller; our own defaults where it left nothing."""
    path = f"{metadata_dir}/{BOOTSTRAP_FILE}"
    if not files.exists(path):
        return bootstrap_records()
    data = read_all(files, path, BOOTSTRAP_BYTES_MAX)
    return [record for batch in decode_metadata(data) for record in batch.records]
