"""Names of files and directories, as in Kafka: a segment's files are named after its base offset in twenty digits."""

from __future__ import annotations

from headrace.base.ids import TopicPartition

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
ABORTED_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_INDEX_SUFFIX)
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"
RAFT_SNAPSHOT_DELETED_SUFFIX = ".checkpoint.deleted"  # the quorum removes these files

DELETE_DIR_SUFFIX = "-delete"
FUTURE_DIR_SUFFIX = "-future"
STRAY_DIR_SUFFIX = "-stray"
NAME_LENGTH_MAX = 255
OFFSET_DIGITS = 20
PARTITION_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1


def segment_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def snapshot_name(offset: int) -> str:
    return segment_name(offset, SNAPSHOT_SUFFIX)


def offset_of(name: str, suffix: str) -> int | None:
    """Return the offset in a file name; None if the name is not twenty digits and `suffix`."""
    digits = name[: -len(suffix)]
    if not name.endswith(suffix) or len(digits) != OFFSET_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    offset = int(digits)
    return offset if offset <= OFFSET_MAX else None


def parse_partition_dir(name: str) -> TopicPartition | None:
    """Return the partition that a directory belongs to; None if its name is not `<topic>-<partition>`."""
    topic, dash, digits = name.rpartition("-")
    if not dash or not topic or not (digits.isascii() and digits.isdigit()) or len(digits) > 10:
        return None
    partition = int(digits)
    return TopicPartition(topic, partition) if partition <= PARTITION_MAX else None


def marked_dir_name(topic_partition: TopicPartition, unique: str, suffix: str) -> str:
    """Return `<topic>-<partition>.<unique><suffix>`, with the topic cut if the name is too long for a file system."""
    tail = f"-{topic_partition.partition}.{unique}{suffix}"
    return topic_partition.topic[: NAME_LENGTH_MAX - len(tail)] + tail
