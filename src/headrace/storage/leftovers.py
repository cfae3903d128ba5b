"""Cleanup of a log directory after a crash: removes half-deleted files and completes the cleaner's unfinished swap."""

from __future__ import annotations

from collections.abc import Callable

from headrace.records.batch import CorruptBatch
from headrace.storage.files import Files
from headrace.storage.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    RAFT_SNAPSHOT_DELETED_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    offset_of,
)
from headrace.storage.segments.scan import scan_headers

_OFFSET_SUFFIXES = (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)


def file_offset(name: str) -> int | None:
    """Return the offset in the name of a segment file or snapshot, even if it is marked as swapped or cleaned."""
    for mark in (SWAP_SUFFIX, CLEANED_SUFFIX):
        name = name.removesuffix(mark)
    for suffix in _OFFSET_SUFFIXES:
        if name.endswith(suffix):
            return offset_of(name, suffix)
    return None


def remove_leftovers(files: Files, directory: str, removed: list[str]) -> None:
    """Remove the files that no segment needs and finish an interrupted swap; add the removed names to `removed`."""
    names = list(files.list_dir(directory))

    def remove(name: str) -> None:
        files.remove(f"{directory}/{name}")
        removed.append(name)
        names.remove(name)

    for name in list(names):
        deleted = name.endswith(DELETED_SUFFIX) and not name.endswith(RAFT_SNAPSHOT_DELETED_SUFFIX)
        if deleted or name.endswith(TEMPORARY_SUFFIX):
            remove(name)
    cleaned = {name: file_offset(name) for name in names if name.endswith(CLEANED_SUFFIX)}
    first_cleaned = min((offset for offset in cleaned.values() if offset is not None), default=None)
    for name in [name for name in names if name.endswith(SWAP_SUFFIX)]:
        # Files are renamed to `.swap` from the highest offset down; the swap begins only when no `.cleaned` file is left.
        offset = file_offset(name)
        if offset is None or (first_cleaned is not None and offset >= first_cleaned):
            remove(name)
    for name in cleaned:
        remove(name)
    _finish_swap(files, directory, names, remove)
    logs = {file_offset(name) for name in names if name.endswith(LOG_SUFFIX)}
    for name in list(names):
        if name.endswith(SEGMENT_SUFFIXES) and file_offset(name) is not None and file_offset(name) not in logs:
            remove(name)


def _finish_swap(files: Files, directory: str, names: list[str], remove: Callable[[str], None]) -> None:
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    ranges = [
        (offset, _next_offset(files, f"{directory}/{name}", offset))
        for name in swaps
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX) and (offset := file_offset(name)) is not None
    ]
    if ranges:
        low, high = min(first for first, _ in ranges), max(end for _, end in ranges)
        for name in list(names):
            offset = file_offset(name)
            if name.endswith(SEGMENT_SUFFIXES) and offset is not None and low <= offset < high:
                remove(name)
    for name in swaps:
        target = name.removesuffix(SWAP_SUFFIX)
        files.rename(f"{directory}/{name}", f"{directory}/{target}")
        names.remove(name)
        if target not in names:
            names.append(target)


def _next_offset(files: Files, path: str, base_offset: int) -> int:
    file = files.open(path)
    next_offset = base_offset
    try:
        for _, header in scan_headers(file, 0, file.size()):
            next_offset = header.next_offset
    except CorruptBatch:  # recovery will report it; the readable part shows which segments it replaces
        pass
    finally:
        file.close()
    return next_offset
