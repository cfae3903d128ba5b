"""`.snapshot`: the producer state at the offset in the name, written on every roll and at a clean shutdown.

It contains only the last batch of each producer: after a restart a duplicate of an older one is refused as out of order, as in
Kafka.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from struct import Struct

from crc32c import crc32c

from headrace.base.errors import CorruptData
from headrace.records.batch import SEQUENCE_MAX
from headrace.storage.files import Files, is_transient, read_all
from headrace.storage.names import DELETED_SUFFIX, SNAPSHOT_SUFFIX, offset_of, snapshot_name
from headrace.storage.producer_state import AppendedBatch, ProducerEntry
from headrace.storage.sync import write_unsynced

SNAPSHOT_VERSION = 1
SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024
_HEAD = Struct(">hIi")  # version, checksum of everything after it, number of entries
_CHECKSUM_END = 6
_ENTRY = Struct(">qhiqiqiq")


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    rows = []
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        rows.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_offset,
                last.last_offset - last.first_offset if last else 0,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
    body = b"".join(rows)
    checked = len(rows).to_bytes(4, "big") + body
    return _HEAD.pack(SNAPSHOT_VERSION, crc32c(checked), len(rows)) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    if len(data) < _HEAD.size:
        raise CorruptData(f"producer snapshot of {len(data)} bytes is too short")
    version, checksum, count = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptData(f"producer snapshot has version {version}, not {SNAPSHOT_VERSION}")
    if checksum != crc32c(memoryview(data)[_CHECKSUM_END:]):
        raise CorruptData("producer snapshot does not match its checksum")
    if count * _ENTRY.size != len(data) - _HEAD.size:
        raise CorruptData(f"producer snapshot of {len(data)} bytes claims {count} entries")
    entries = []
    for producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first in _ENTRY.iter_unpack(
        memoryview(data)[_HEAD.size :]
    ):
        entry = ProducerEntry(producer_id, epoch)
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.transaction_first_offset = first
        if offset >= 0:
            first_sequence = (sequence - delta) & SEQUENCE_MAX if sequence >= 0 else sequence
            entry.batches.append(AppendedBatch(first_sequence, sequence, offset - delta, offset, timestamp))
        entries.append(entry)
    return entries


class ProducerSnapshots:
    """The snapshot files of one log."""

    def __init__(self, files: Files, directory: str, *, empty: bool = False) -> None:
        """Find the snapshots in `directory`; `empty` skips this for a directory that is known to have none."""
        self._files = files
        self._directory = directory
        names = [] if empty else [name for name in files.list_dir(directory) if name.endswith(SNAPSHOT_SUFFIX)]
        self._offsets = sorted(offset for name in names if (offset := offset_of(name, SNAPSHOT_SUFFIX)) is not None)

    @property
    def latest(self) -> int | None:
        return self._offsets[-1] if self._offsets else None

    def set_directory(self, directory: str) -> None:
        """Update the path after the directory was renamed."""
        self._directory = directory

    def path(self, offset: int) -> str:
        return f"{self._directory}/{snapshot_name(offset)}"

    def write(self, offset: int, entries: Iterable[ProducerEntry]) -> str | None:
        """Write a snapshot and return its path, which the next sync must include; None if one exists at that offset."""
        if offset in self._offsets:
            return None
        path = self.path(offset)
        write_unsynced(self._files, path, encode_snapshot(entries))
        self._offsets.append(offset)
        self._offsets.sort()
        return path

    def load_latest(self) -> tuple[int, list[ProducerEntry]] | None:
        """Return the newest readable snapshot, removing newer unreadable ones."""
        while self._offsets:
            offset = self._offsets[-1]
            try:
                return offset, decode_snapshot(read_all(self._files, self.path(offset), SNAPSHOT_BYTES_MAX))
            except CorruptData:
                self._remove(offset)
        return None

    def keep_range(self, low: int, high: int) -> None:
        """Remove snapshots at or below `low`, which do not describe the rest of the log, and those above `high`."""
        for offset in list(self._offsets):
            if offset <= low or offset > high:
                self._remove(offset)

    def mark_deleted(self, low: int, high: int) -> list[str]:
        """Stop tracking the snapshots from `low` to below `high` and return their paths, to be removed with their segments.

        The files are renamed to `.deleted` if possible.
        """
        deleted = [offset for offset in self._offsets if low <= offset < high]
        self._offsets = [offset for offset in self._offsets if not low <= offset < high]
        return [self._mark_deleted(self.path(offset)) for offset in deleted]

    def _mark_deleted(self, path: str) -> str:
        try:
            self._files.rename(path, path + DELETED_SUFFIX)
        except FileNotFoundError:
            return path
        except OSError as error:
            if not is_transient(error):
                raise
            return path
        return path + DELETED_SUFFIX

    def remove_unneeded(self, base_offsets: Collection[int]) -> None:
        """Remove snapshots that belong to no segment's start, except the last one after the start of the last segment.

        A clean shutdown writes that one.
        """
        last_base = max(base_offsets, default=0)
        ahead = [offset for offset in self._offsets if offset > last_base]
        for offset in list(self._offsets):
            if offset not in base_offsets and offset not in ahead[-1:]:
                self._remove(offset)

    def _remove(self, offset: int) -> None:
        self._files.remove(self.path(offset))
        self._offsets.remove(offset)
