"""Control records about the quorum (KIP-853): its kraft.version and its voters. A quorum of static voters has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.errors import CorruptData
from headrace.base.ids import NodeId, Uuid
from headrace.protocol.compiler import codec
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.embedded import KRaftVersionRecord, VotersRecord
from headrace.quorum.log import MetadataLog
from headrace.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from headrace.records.control import ControlRecord, ControlType, ParsedControlRecord, parse_control_batch

VOTERS_MAX = 1000  # voters in one record; a larger one is taken for garbage


class VoterRecords(Struct, frozen=True):
    """The level of kraft.version, and the voters if they are in the log."""

    kraft_version: int = 0
    voters: VoterSet | None = None

    def after(self, control: Iterable[ParsedControlRecord]) -> VoterRecords:
        """Return what applies after these control records. Raise CorruptData if one cannot be read."""
        newest = self
        for record in control:
            try:
                if record.type == ControlType.KRAFT_VERSION:
                    version: KRaftVersionRecord = codec(KRaftVersionRecord, 0).decode(record.value, 0)
                    newest = replace(newest, kraft_version=version.kraft_version)
                elif record.type == ControlType.KRAFT_VOTERS:
                    newest = replace(newest, voters=_voters_of(codec(VotersRecord, 0).decode(record.value, 0)))
            except (DecodeError, ValueError) as error:
                raise CorruptData(f"the voters of the metadata log cannot be read: {error}") from error
        return newest

    def control(self) -> list[ControlRecord]:
        """Return the control records for a snapshot or a new log."""
        records = []
        if self.kraft_version:
            version = KRaftVersionRecord(version=0, kraft_version=self.kraft_version)
            records.append(ControlRecord(ControlType.KRAFT_VERSION, codec(KRaftVersionRecord, 0).encode(version)))
        if self.voters is not None:
            message = VotersRecord(version=0, voters=[_encoded(voter) for voter in self.voters.voters])
            records.append(ControlRecord(ControlType.KRAFT_VOTERS, codec(VotersRecord, 0).encode(message)))
        return records


def _encoded(voter: Voter) -> VotersRecord.Voter:
    return VotersRecord.Voter(
        voter_id=voter.key.id,
        voter_directory_id=voter.key.directory,
        endpoints=[VotersRecord.Endpoint(name=name, host=host, port=port) for name, host, port in voter.endpoints],
        kraft_version_feature=VotersRecord.KRaftVersionFeature(
            min_supported_version=voter.kraft_version_min, max_supported_version=voter.kraft_version_max
        ),
    )


def _voters_of(record: VotersRecord) -> VoterSet:
    """Return the set of a record. Raise ValueError if it has no voters, too many, or one of them twice."""
    ids = {voter.voter_id for voter in record.voters}
    if not ids or len(ids) != len(record.voters) or len(ids) > VOTERS_MAX or min(ids) < 0:
        raise ValueError(f"a record with {len(record.voters)} voters, {len(ids)} of them different")
    return VoterSet(
        Voter(
            ReplicaKey(NodeId(voter.voter_id), Uuid(voter.voter_directory_id)),
            tuple(Endpoint(endpoint.name, endpoint.host, endpoint.port) for endpoint in voter.endpoints),
            voter.kraft_version_feature.min_supported_version,
            voter.kraft_version_feature.max_supported_version,
        )
        for voter in record.voters
    )


def changes(known: VoterRecords, control: Iterable[ParsedControlRecord]) -> Iterator[tuple[int, VoterRecords]]:
    """Yield the offset of each control record that changes `known`, with what applies from there on."""
    for record in control:
        before, known = known, known.after([record])
        if known is not before:
            yield record.offset, known


def control_records_in(log: MetadataLog, start: int) -> Iterator[ParsedControlRecord]:
    """Yield the control records of the log from `start` on, committed or not: a voter set applies once it is written."""
    for segment in log.log.segments.from_offset(start):
        for position, header in segment.scan_from(max(start, segment.base_offset)):
            if header.is_control and header.base_offset >= start:
                yield from parse_control_batch(segment.file.read(position, header.size))
