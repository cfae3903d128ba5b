"""Snapshots of the metadata log in files named `<end offset>-<epoch>.checkpoint` (KIP-630).

A snapshot holds records that rebuild the state below its end offset, between a header and a footer. It is written as `.part` and
renamed when it is complete and on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from headrace.base.errors import CorruptData
from headrace.metadata.records import METADATA_VERSION_MAX, encode_record
from headrace.protocol.compiler import codec
from headrace.protocol.messages.embedded import SnapshotFooterRecord, SnapshotHeaderRecord
from headrace.quorum.log import READ_SLICE_BYTES, MetadataBatch, decode_metadata
from headrace.records.batch import HEADER_BYTES, check_crc, iterate_batches, read_header
from headrace.records.builder import BatchBuilder
from headrace.records.control import (
    ControlRecord,
    ControlType,
    ParsedControlRecord,
    build_control_batch,
    parse_control_batch,
)
from headrace.storage.files import Files

log = logging.getLogger(__name__)

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
DELETED_SUFFIX = ".checkpoint.deleted"
OFFSET_DIGITS, EPOCH_DIGITS = 20, 10
BATCH_BYTES = 32 << 10  # small enough to encode, and decode again, without blocking the event loop
BATCH_BYTES_MAX = 64 << 20  # limit for batches that other software wrote


class SnapshotId(NamedTuple):
    end_offset: int  # offset of the first record that is not in the snapshot
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:0{OFFSET_DIGITS}d}-{self.epoch:0{EPOCH_DIGITS}d}{SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> SnapshotId | None:
        stem, dot, suffix = name.partition(".")
        offset, _, epoch = stem.partition("-")
        if dot + suffix != SUFFIX or (len(offset), len(epoch)) != (OFFSET_DIGITS, EPOCH_DIGITS):
            return None
        return cls(int(offset), int(epoch)) if stem.isascii() and (offset + epoch).isdigit() else None


class SnapshotFiles:
    """The snapshots in the directory of the metadata log. Methods that read or write files block."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self.ids: list[SnapshotId] = []  # oldest first
        if files.exists(directory):
            for name in files.list_dir(directory):
                found = SnapshotId.parse(name)
                if found is not None:
                    self.ids.append(found)
                elif name.endswith((PART_SUFFIX, DELETED_SUFFIX)):
                    files.remove(f"{directory}/{name}")
        self.ids.sort()

    @property
    def newest(self) -> SnapshotId | None:
        return self.ids[-1] if self.ids else None

    def path(self, snapshot: SnapshotId) -> str:
        return f"{self._directory}/{snapshot.file_name}"

    def size(self, snapshot: SnapshotId) -> int:
        return len_of(self._files, self.path(snapshot))

    def read_range(self, snapshot: SnapshotId, position: int, max_bytes: int) -> bytes:
        file = self._files.open(self.path(snapshot))
        try:
            return file.read(position, max_bytes)
        finally:
            file.close()

    def read(self, snapshot: SnapshotId) -> Iterator[MetadataBatch]:
        """Return an iterator over the batches; it raises CorruptData if the snapshot is incomplete."""
        return whole_snapshot(_batches(self._files, self.path(snapshot)), self.path(snapshot))

    def control_of(self, snapshot: SnapshotId) -> list[ParsedControlRecord]:
        """Return the snapshot's header and the control records of the quorum."""
        batches = _batches(self._files, self.path(snapshot))
        with closing(batches):
            return next(batches).control

    def check(self, snapshot: SnapshotId) -> None:
        """Raise CorruptData unless all checksums are right, the first batch is a header and the last one a footer."""
        check_file(self._files, self.path(snapshot))

    def write(self, snapshot: SnapshotId, batches: Iterable[bytes]) -> None:
        """Write a small snapshot in one call; large ones use `begin`, PartFile and `written`."""
        part = self.begin(snapshot)
        for batch in batches:
            part.append(batch)
        part.finish()
        self.written(snapshot)

    def begin(self, snapshot: SnapshotId) -> PartFile:
        return PartFile(self._files, self.path(snapshot))

    def written(self, snapshot: SnapshotId) -> None:
        if snapshot not in self.ids:
            self.ids.append(snapshot)
            self.ids.sort()

    def forget(self, below: SnapshotId) -> Callable[[], None]:
        """Forget the snapshots before this one; return a function that removes their files and may run in a thread."""
        gone = [one for one in self.ids if one < below]
        self.ids = [one for one in self.ids if one >= below]
        paths = [self.path(one) for one in gone]

        def remove() -> None:
            for path in paths:
                self._files.remove(path)

        return remove


class PartFile:
    """A snapshot that is being written; `finish` gives it its final name when it is complete and on disk."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._part = path.removesuffix(SUFFIX) + PART_SUFFIX
        files.remove(self._part)
        self._file = files.open(self._part, create=True)

    def append(self, data: bytes) -> None:
        self._file.append(data)

    def check(self) -> None:
        """Raise CorruptData unless the file is a whole snapshot."""
        check_file(self._files, self._part)

    def finish(self) -> None:
        self._file.sync()  # BEFORE the rename: a final name must never point to contents that a crash can lose
        self._file.close()
        self._files.rename(self._part, self._path)
        self._files.sync_dir(self._path.rsplit("/", 1)[0])

    def abandon(self) -> None:
        self._file.close()
        self._files.remove(self._part)


def snapshot_batches(
    records: Iterable[Any],
    epoch: int,
    now_ms: int,
    *,
    last_timestamp: int,
    control: Sequence[ControlRecord] = (),
    metadata_version: int = METADATA_VERSION_MAX,
) -> Iterator[bytes]:
    """Yield the batches of a snapshot file.

    `last_timestamp` is the timestamp of the newest record in it, `control` the control records of the quorum.
    """
    header = codec(SnapshotHeaderRecord, 0).encode(
        SnapshotHeaderRecord(version=0, last_contained_log_timestamp=last_timestamp)
    )
    first = [ControlRecord(ControlType.SNAPSHOT_HEADER, header), *control]
    yield bytes(build_control_batch(first, timestamp=now_ms, leader_epoch=epoch))
    offset = len(first)
    builder, size = BatchBuilder(), 0
    for record in records:
        value = encode_record(record, metadata_version)
        if builder.count and size + len(value) > BATCH_BYTES:
            yield bytes(builder.build(base_offset=offset, leader_epoch=epoch))
            offset += builder.count
            builder, size = BatchBuilder(), 0
        builder.append(now_ms, None, value)
        size += len(value)
    if builder.count:
        yield bytes(builder.build(base_offset=offset, leader_epoch=epoch))
        offset += builder.count
    footer = ControlRecord(
        ControlType.SNAPSHOT_FOOTER, codec(SnapshotFooterRecord, 0).encode(SnapshotFooterRecord(version=0))
    )
    yield bytes(build_control_batch([footer], timestamp=now_ms, base_offset=offset, leader_epoch=epoch))


def whole_snapshot(batches: Iterable[MetadataBatch], name: str) -> Iterator[MetadataBatch]:
    """Yield the batches unchanged; raise CorruptData unless they start with a header and end with a footer."""
    first, last = True, None
    for batch in batches:
        if first and (not batch.control or batch.control[0].type != ControlType.SNAPSHOT_HEADER):
            raise CorruptData(f"{name} does not begin like a snapshot")
        first, last = False, batch.control[-1].type if batch.control else None
        yield batch
    if last != ControlType.SNAPSHOT_FOOTER:
        raise CorruptData(f"{name} is cut off: a snapshot ends with a footer")


def check_file(files: Files, path: str) -> None:
    """Raise CorruptData unless all checksums are right, the first batch is a header and the last one a footer.

    Metadata records are not decoded.
    """
    first = last = None
    for raw in _raw_batches(files, path):
        header = read_header(raw)
        check_crc(raw, 0, header)
        kind = parse_control_batch(raw)[0].type if header.is_control else None
        first, last = kind if first is None else first, kind
    if first != ControlType.SNAPSHOT_HEADER or last != ControlType.SNAPSHOT_FOOTER:
        raise CorruptData(f"{path} is no whole snapshot")


def snapshot_timestamp(files: SnapshotFiles, snapshot: SnapshotId) -> int:
    """Return the timestamp of the newest record in the snapshot, from its header."""
    header: SnapshotHeaderRecord = codec(SnapshotHeaderRecord, 0).decode(files.control_of(snapshot)[0].value, 0)
    return header.last_contained_log_timestamp


def len_of(files: Files, path: str) -> int:
    file = files.open(path)
    try:
        return file.size()
    finally:
        file.close()


def _batches(files: Files, path: str) -> Generator[MetadataBatch, None, None]:
    for raw in _raw_batches(files, path):
        yield from decode_metadata(raw)


def _raw_batches(files: Files, path: str) -> Iterator[bytes]:
    file = files.open(path)
    try:
        position, size, read_bytes = 0, file.size(), READ_SLICE_BYTES
        while position < size:
            data = file.read(position, read_bytes)
            taken = 0
            for start, header in iterate_batches(data):
                taken += header.size
                yield data[start : start + header.size]
            read_bytes = READ_SLICE_BYTES
            if not taken:
                read_bytes = read_header(data).size if len(data) >= HEADER_BYTES else 0
                if not len(data) < read_bytes <= min(BATCH_BYTES_MAX, size - position):
                    raise CorruptData(f"{path} is cut off at {position}")
            position += taken
    finally:
        file.close()
