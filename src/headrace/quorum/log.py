"""The metadata log: an ordinary log whose batches contain metadata records and the control records of the quorum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headrace.base.clock import Clock
from headrace.metadata.records import METADATA_VERSION_MAX, decode_record, encode_record
from headrace.protocol.compiler import codec
from headrace.protocol.messages.embedded import LeaderChangeMessage
from headrace.raft.effects import AppendLeaderChange
from headrace.records.batch import check_crc, iterate_batches, read_header
from headrace.records.builder import BatchBuilder
from headrace.records.control import (
    ControlRecord,
    ControlType,
    ParsedControlRecord,
    build_control_batch,
    parse_control_batch,
)
from headrace.records.record import decode_records
from headrace.storage.log import Log

READ_SLICE_BYTES = 1 << 20


class MetadataBatch(NamedTuple):
    """A decoded batch of the metadata log. Control batches have no metadata records, but they occupy offsets."""

    last_offset: int
    epoch: int
    records: list[Any]
    control: list[ParsedControlRecord]
    size: int


class MetadataLog:
    def __init__(self, log: Log, clock: Clock) -> None:
        self.log = log
        self._clock = clock
        self.bytes_appended = 0  # since the log was opened

    @property
    def end_offset(self) -> int:
        return self.log.log_end

    def append(self, records: Sequence[Any], epoch: int, metadata_version: int = METADATA_VERSION_MAX) -> int:
        """Append the records as one batch, so that a crash keeps all or none of them; return the new log end."""
        now_ms = self._clock.now_ms()
        builder = BatchBuilder()
        for record in records:
            builder.append(now_ms, None, encode_record(record, metadata_version))
        return self._write(builder.build(), epoch, now_ms)

    def append_leader_change(
        self, leader: AppendLeaderChange, leader_id: int, more: Sequence[ControlRecord] = ()
    ) -> int:
        """Append a leader change and return the new log end.

        `more` has the control records for the same batch: the voters, in a new log.
        """
        voters = LeaderChangeMessage.Voter
        message = LeaderChangeMessage(
            version=0,
            leader_id=leader_id,
            voters=[voters(voter_id=voter) for voter in leader.voters.ids],
            granting_voters=[voters(voter_id=voter) for voter in leader.granted_by],
        )
        now_ms = self._clock.now_ms()
        record = ControlRecord(ControlType.LEADER_CHANGE, codec(LeaderChangeMessage, 0).encode(message))
        batch = build_control_batch([record, *more], timestamp=now_ms)
        return self._write(batch, leader.epoch, now_ms)

    def append_control(self, records: Sequence[ControlRecord], epoch: int) -> int:
        """Append control records as one batch and return the new log end."""
        now_ms = self._clock.now_ms()
        return self._write(build_control_batch(records, timestamp=now_ms), epoch, now_ms)

    def append_fetched(self, records: bytes) -> None:
        """Append batches of the leader, with their offsets and epochs."""
        self.log.append_as_follower(records, self._clock.now_ms())
        self.bytes_appended += len(records)

    def truncate(self, end_offset: int) -> int:
        """Remove the records from this offset on and return the new log end, which is lower if a batch spans the offset."""
        return self.log.truncate_to(end_offset, self._clock.now_ms())

    def restart_at(self, offset: int) -> None:
        """Drop all records and continue at this offset, after a snapshot of the leader."""
        self.log.truncate_fully_and_start_at(offset, self._clock.now_ms())

    def _write(self, batch: bytearray, epoch: int, now_ms: int) -> int:
        view = memoryview(batch)
        header = read_header(view)
        self.log.append_as_leader(view, header, epoch, now_ms, check_producer=False)
        self.bytes_appended += len(view)
        return self.log.log_end

    def read_bytes(self, start: int, end: int, max_bytes: int) -> bytes:
        """Return whole batches below `end`, starting with the one that contains `start`."""
        return self.log.read(start, max_bytes, end).range.read()

    def read(self, start: int, end: int) -> Iterator[MetadataBatch]:
        while start < end:
            data = self.read_bytes(start, end, READ_SLICE_BYTES)
            for batch in decode_metadata(data):
                if batch.last_offset >= start:
                    yield batch
                    start = batch.last_offset + 1

    def timestamp_of(self, offset: int) -> int:
        """Return the largest timestamp of the batch that contains the offset."""
        return read_header(self.read_bytes(offset, offset + 1, 1)).max_timestamp

    def size_from(self, offset: int) -> int:
        """Return the size in bytes of the log from the batch that contains `offset` on."""
        size = 0
        for segment in self.log.segments.from_offset(offset):
            located = segment.locate(offset) if segment.base_offset < offset else None
            size += segment.size - (located.position if located is not None else 0)
        return size


def decode_metadata(data: bytes) -> Iterator[MetadataBatch]:
    """Yield the batches; raise CorruptData for anything that cannot be in a metadata log."""
    for position, header in iterate_batches(data):
        check_crc(data, position, header)
        batch = memoryview(data)[position : position + header.size]
        records: list[Any] = []
        control: list[ParsedControlRecord] = []
        if header.is_control:
            control = parse_control_batch(batch)
        else:
            records = [decode_record(record.value or b"") for record in decode_records(batch)]
        yield MetadataBatch(header.last_offset, header.leader_epoch, records, control, header.size)
