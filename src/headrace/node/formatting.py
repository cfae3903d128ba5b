"""Making data directories: who they belong to, and what the first controller of a new cluster will write (bootstrap.checkpoint)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from headrace.base.errors import ConfigError
from headrace.base.ids import NodeId, new_uuid, uuid_text
from headrace.metadata.image import BROKER_CONFIG
from headrace.metadata.records import encode_record
from headrace.protocol.compiler import codec
from headrace.protocol.messages.embedded import SnapshotFooterRecord, SnapshotHeaderRecord
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord, FeatureLevelRecord
from headrace.quorum.log import decode_metadata
from headrace.records.builder import BatchBuilder
from headrace.records.control import ControlRecord, ControlType, build_control_batch
from headrace.storage.checkpoints import MetaProperties
from headrace.storage.files import Files, read_all, write_atomically
from headrace.storage.log_dirs import LogDir

BOOTSTRAP_FILE = "bootstrap.checkpoint"
BOOTSTRAP_BYTES_MAX = 16 << 20

# The levels at which this version writes its records, and the ranges that it can live with.
FEATURE_LEVELS = {"metadata.version": 30, "eligible.leader.replicas.version": 1}
SUPPORTED_FEATURES = {"metadata.version": (30, 30), "eligible.leader.replicas.version": (0, 1), "kraft.version": (0, 0)}


def new_cluster_id(chance: Random) -> str:
    return uuid_text(new_uuid(chance))


def format_log_dirs(
    log_dirs: Sequence[LogDir], metadata_dir: str, node_id: NodeId, cluster_id: str, now_ms: int, chance: Random
) -> None:
    """Directories that belong to nobody yet become this node's; the others stay as they are."""
    for log_dir in log_dirs:
        if log_dir.meta is None:
            if log_dir.contents().partitions:
                raise ConfigError(
                    f"log.dirs: {log_dir.path} holds logs but no meta.properties: whose they are is unknown"
                )
            if log_dir.path == metadata_dir:
                data = encode_bootstrap(bootstrap_records(), now_ms)
                write_atomically(log_dir.files, f"{log_dir.path}/{BOOTSTRAP_FILE}", data)
            log_dir.format(MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=new_uuid(chance)))


def bootstrap_records() -> list[Any]:
    return [
        *(FeatureLevelRecord(name=name, feature_level=level) for name, level in FEATURE_LEVELS.items()),
        # With ELR the cluster-wide value must be written down, so that no two controllers disagree about it (KIP-966).
        ConfigRecord(resource_type=BROKER_CONFIG, resource_name="", name="min.insync.replicas", value="1"),
    ]


def encode_bootstrap(records: Sequence[Any], now_ms: int) -> bytes:
    """A snapshot of an empty log: header, records, footer."""
    header = codec(SnapshotHeaderRecord, 0).encode(SnapshotHeaderRecord(version=0, last_contained_log_timestamp=0))
    footer = codec(SnapshotFooterRecord, 0).encode(SnapshotFooterRecord(version=0))
    builder = BatchBuilder()
    for record in records:
        builder.append(now_ms, None, encode_record(record))
    return b"".join(
        (
            build_control_batch([ControlRecord(ControlType.SNAPSHOT_HEADER, header)], timestamp=now_ms, leader_epoch=0),
            builder.build(base_offset=1, leader_epoch=0),
            build_control_batch(
                [ControlRecord(ControlType.SNAPSHOT_FOOTER, footer)],
                timestamp=now_ms,
                base_offset=1 + len(records),
                leader_epoch=0,
            ),
        )
    )


def read_bootstrap(files: Files, metadata_dir: str) -> list[Any]:
    """What `format` (ours or Kafka's) left for the first controller; our own defaults where it left nothing."""
    path = f"{metadata_dir}/{BOOTSTRAP_FILE}"
    if not files.exists(path):
        return bootstrap_records()
    data = read_all(files, path, BOOTSTRAP_BYTES_MAX)
    return [record for batch in decode_metadata(data) for record in batch.records if record is not None]
