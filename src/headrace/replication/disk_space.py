"""Which log dirs have no space left for what producers send."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.replication.partition import Partition
from headrace.storage.log_dirs import LogDir


def full_log_dirs(log_dirs: Iterable[LogDir], partitions: Iterable[Partition]) -> list[LogDir]:
    """Return the log dirs that have less space than the smallest batch that their partitions refused most recently.

    Only a refusal makes a log dir full: a volume may keep a reserve for some users, so its free space alone is no indication.
    """
    bytes_needed: dict[str, int] = {}
    for partition in partitions:
        if partition.free_bytes_needed is not None and partition.offline is None:
            path = partition.log.directory.rpartition("/")[0]
            bytes_needed[path] = min(partition.free_bytes_needed, bytes_needed.get(path, partition.free_bytes_needed))
    return [log_dir for log_dir in log_dirs if _usable_bytes(log_dir) < bytes_needed.get(log_dir.path, 0)]


def _usable_bytes(log_dir: LogDir) -> int:
    try:
        return log_dir.files.space(log_dir.path)[1]
    except OSError:
        return 0  # a volume that fails this call takes no records either
