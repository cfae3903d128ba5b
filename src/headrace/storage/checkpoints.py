"""The small text files: offset checkpoints, leader epochs, `meta.properties`, the clean-shutdown marker.

They are encoded and parsed here; errors name the file and, where possible, the line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import msgspec

from headrace.base.errors import ConfigError, CorruptData
from headrace.base.ids import NodeId, TopicPartition, Uuid, uuid_from_text, uuid_text
from headrace.options.table import parse_properties
from headrace.storage.files import Files, read_all, write_atomically
from headrace.storage.leader_epochs import EpochStart

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

CHECKPOINT_VERSION = 0
CHECKPOINT_BYTES_MAX = 64 * 1024 * 1024
PROPERTIES_BYTES_MAX = 64 * 1024
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class CorruptCheckpoint(CorruptData):
    """A checkpoint whose contents are invalid."""


class MetaProperties(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    node_id: NodeId
    directory_id: Uuid


def read_text(files: Files, path: str, limit: int) -> str | None:
    """Return the contents of a file of at most `limit` bytes; None if it does not exist."""
    try:
        data = read_all(files, path, limit)
    except FileNotFoundError:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"{path}: {error}") from error


def _number(path: str, line: int, text: str, low: int, high: int) -> int:
    digits = text[1:] if text[:1] == "-" else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and low <= int(text) <= high):
        raise CorruptCheckpoint(f"{path}, line {line}: {text[:40]!r} is not a number from {low} to {high}")
    return int(text)


def _entries(path: str, text: str, fields: int) -> Iterable[tuple[int, list[str]]]:
    """Yield the line number and fields of each entry of a checkpoint.

    The file has the version, the number of entries and one entry per line. An empty file has no entries.
    """
    lines = text.splitlines()
    if not lines:
        return
    _number(path, 1, lines[0].strip(), CHECKPOINT_VERSION, CHECKPOINT_VERSION)
    if len(lines) < 2:
        raise CorruptCheckpoint(f"{path}, line 2: the number of entries is missing")
    count = _number(path, 2, lines[1].strip(), 0, INT32_MAX)
    entries = [line for line in lines[2:] if line.strip()]
    if len(entries) != count:
        raise CorruptCheckpoint(f"{path}, line 2: {count} entries are announced, {len(entries)} were found")
    for number, line in enumerate(entries, start=3):
        parts = line.split()
        if len(parts) != fields:
            raise CorruptCheckpoint(f"{path}, line {number}: {line[:80]!r} has {len(parts)} fields, not {fields}")
        yield number, parts


def parse_offsets(path: str, text: str) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for line, (topic, partition, offset) in _entries(path, text, 3):
        key = TopicPartition(topic, _number(path, line, partition, 0, INT32_MAX))
        offsets[key] = _number(path, line, offset, 0, INT64_MAX)
    return offsets


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{CHECKPOINT_VERSION}\n{len(offsets)}\n"]
    lines += [f"{key.topic} {key.partition} {offset}\n" for key, offset in offsets.items()]
    return "".join(lines).encode()


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint file, empty if it does not exist."""
    text = read_text(files, path, CHECKPOINT_BYTES_MAX)
    return {} if text is None else parse_offsets(path, text)


def write_offsets(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    write_atomically(files, path, encode_offsets(offsets))


def parse_leader_epochs(path: str, text: str) -> list[EpochStart]:
    return [
        EpochStart(_number(path, line, epoch, 0, INT32_MAX), _number(path, line, start, 0, INT64_MAX))
        for line, (epoch, start) in _entries(path, text, 2)
    ]


def encode_leader_epochs(entries: Iterable[EpochStart]) -> bytes:
    rows = [f"{entry.epoch} {entry.start_offset}\n" for entry in entries]
    return f"{CHECKPOINT_VERSION}\n{len(rows)}\n{''.join(rows)}".encode()


def read_meta_properties(files: Files, path: str) -> MetaProperties | None:
    text = read_text(files, path, PROPERTIES_BYTES_MAX)
    if text is None:
        return None
    try:
        values = parse_properties(text, path)
    except ConfigError as error:
        raise CorruptCheckpoint(str(error)) from error

    def required(name: str) -> str:
        if not values.get(name):
            raise CorruptCheckpoint(f"{path}: {name} is missing")
        return values[name]

    if required("version") != "1":
        raise CorruptCheckpoint(f"{path}: version is {values['version']!r}, only '1' is supported")
    try:
        directory_id = uuid_from_text(required("directory.id"))
    except ValueError as error:
        raise CorruptCheckpoint(f"{path}: directory.id: {error}") from error
    if not required("node.id").isascii() or not values["node.id"].isdigit() or len(values["node.id"]) > 10:
        raise CorruptCheckpoint(f"{path}: node.id is {values['node.id'][:40]!r}")
    node_id = NodeId(int(values["node.id"]))
    return MetaProperties(cluster_id=required("cluster.id"), node_id=node_id, directory_id=directory_id)


def encode_meta_properties(meta: MetaProperties) -> bytes:
    rows = (
        f"cluster.id={meta.cluster_id}",
        f"directory.id={uuid_text(meta.directory_id)}",
        f"node.id={meta.node_id}",
        "version=1",
    )
    return ("#\n" + "\n".join(rows) + "\n").encode()


def read_clean_shutdown(files: Files, path: str) -> int | None:
    """Return the broker epoch of a clean shutdown; -1 if the marker does not contain it, None if there is no marker."""
    text = read_text(files, path, PROPERTIES_BYTES_MAX)
    if text is None:
        return None
    try:
        marker = json.loads(text)
        return int(marker["brokerEpoch"]) if marker.get("version") == 0 else -1
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return -1  # old brokers left an empty marker, which also means a clean shutdown


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
