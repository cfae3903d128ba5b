"""`partition.metadata`: the id of the topic that a log's directory belongs to. Names can be reused, ids cannot."""

from __future__ import annotations

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, Uuid, uuid_from_text, uuid_text
from headrace.storage.checkpoints import PROPERTIES_BYTES_MAX, CorruptCheckpoint, read_text
from headrace.storage.files import Files
from headrace.storage.names import LOG_SUFFIX
from headrace.storage.sync import write_unsynced

PARTITION_METADATA = "partition.metadata"


class RecordsWithoutOwner(KafkaError):
    """A directory has records, but a crash has lost the id of the topic that they belong to."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{directory} has records, but the crash has left no id of their topic in {PARTITION_METADATA}",
        )


def require_owner(files: Files, directory: str) -> None:
    """Raise RecordsWithoutOwner if a directory has records but does not name their topic.

    For logs without a recovery point: no sync of their records and of the name was completed. The records may be those of a deleted
    topic of the same name: epochs and offsets of both begin at 0, so replication would not notice.
    """
    try:
        owner = read_partition_metadata(files, f"{directory}/{PARTITION_METADATA}")
    except CorruptCheckpoint:
        owner = None
    if owner is None and _has_records(files, directory):
        raise RecordsWithoutOwner(directory)


def _has_records(files: Files, directory: str) -> bool:
    return any(_size(files, f"{directory}/{name}") for name in files.list_dir(directory) if name.endswith(LOG_SUFFIX))


def _size(files: Files, path: str) -> int:
    file = files.open(path)
    try:
        return file.size()
    finally:
        file.close()


def claim_directory(
    files: Files, directory: str, topic_id: Uuid, *, is_new: bool, clean: bool
) -> tuple[Uuid, str | None]:
    """Return the id of the topic that owns the directory and the path that must still be synced, if any.

    A directory without an owner is claimed for `topic_id`. Raise KafkaError INCONSISTENT_TOPIC_ID if it belongs to another
    topic of that name.
    """
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        stored = None if is_new else read_partition_metadata(files, path)
    except CorruptCheckpoint:
        if clean:
            raise
        stored = None  # torn before it was ever synced: treated as missing (see require_owner)
    if stored is None:
        if topic_id == ZERO_UUID:
            return ZERO_UUID, None
        write_unsynced(files, path, encode_partition_metadata(topic_id))
        return topic_id, path
    if topic_id not in (ZERO_UUID, stored):
        raise KafkaError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{directory} belongs to topic {uuid_text(stored)}, not to {uuid_text(topic_id)}",
        )
    # After an unclean shutdown it is unknown whether the file was ever synced.
    return stored, None if clean else path


def read_partition_metadata(files: Files, path: str) -> Uuid | None:
    """Return the topic id; None if the file is missing, or empty as a crash can leave it."""
    text = read_text(files, path, PROPERTIES_BYTES_MAX)
    if not text:
        return None
    values: dict[str, str] = {}
    for line, row in enumerate(text.splitlines(), start=1):
        name, separator, value = row.partition(": ")
        if not separator:
            raise CorruptCheckpoint(f"{path}, line {line}: {row[:80]!r} is not `name: value`")
        values[name] = value.strip()
    if values.get("version") != "0":
        raise CorruptCheckpoint(f"{path}: version is {values.get('version')!r}, not '0'")
    try:
        return uuid_from_text(values.get("topic_id", ""))
    except ValueError as error:
        raise CorruptCheckpoint(f"{path}: topic_id: {error}") from error


def encode_partition_metadata(topic_id: Uuid) -> bytes:
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()
