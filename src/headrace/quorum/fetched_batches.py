"""Checks and appends the batches that a follower has fetched from its leader."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.quorum.log import MetadataLog
from headrace.quorum.voter_records import VoterRecords, changes
from headrace.records.batch import CorruptBatch, iterate_batches
from headrace.records.control import ParsedControlRecord, parse_control_batch
from headrace.storage.append import UnexpectedBatch, analyze_follower


def append_fetched(log: MetadataLog, records: bytes, leader_epoch: int) -> list[tuple[int, VoterRecords]]:
    """Append the batches, and return what their control records say about the quorum, with their offsets.

    Raise CorruptData or UnexpectedBatch, before anything is written, if a batch cannot be the leader's: the batches must begin
    where the log ends, follow each other without gaps, have correct checksums, and be of no later epoch than the leader's.
    """
    end = log.end_offset
    headers, _ = analyze_follower(records, end, log.log.epochs.latest)
    if not headers:
        raise CorruptBatch(f"the {len(records)} bytes that were fetched have no whole batch")
    for header in headers:
        if header.base_offset != end:
            raise UnexpectedBatch(f"batch begins at offset {header.base_offset} instead of {end}")
        if header.leader_epoch > leader_epoch:
            raise UnexpectedBatch(f"batch of epoch {header.leader_epoch} from the leader of epoch {leader_epoch}")
        if header.last_offset_delta < 0:
            raise UnexpectedBatch(f"batch at offset {header.base_offset} ends before it begins")
        end = header.next_offset
    found = list(changes(VoterRecords(), _control_records(records)))
    log.append_fetched(records)
    return found


def _control_records(records: bytes) -> Iterator[ParsedControlRecord]:
    for position, header in iterate_batches(records):
        if header.is_control:
            yield from parse_control_batch(memoryview(records)[position : position + header.size])
