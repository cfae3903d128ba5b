"""Control records about the quorum (KIP-853): its kraft.version and its voters. A quorum of static voters has none."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.errors import ConfigError, CorruptData
from headrace.base.ids import ZERO_UUID, Uuid
from headrace.protocol.compiler import codec
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.embedded import KRaftVersionRecord, VotersRecord
from headrace.quorum.log import MetadataLog
from headrace.records.control import ControlRecord, ControlType, ParsedControlRecord, parse_control_batch


class VoterRecords(Struct, frozen=True):
    kraft_version: int = 0
    voters: VotersRecord | None = None

    def after(self, control: Iterable[ParsedControlRecord]) -> VoterRecords:
        newest = self
        for record in control:
            try:
                if record.type == ControlType.KRAFT_VERSION:
                    version: KRaftVersionRecord = codec(KRaftVersionRecord, 0).decode(record.value, 0)
                    newest = replace(newest, kraft_version=version.kraft_version)
                elif record.type == ControlType.KRAFT_VOTERS:
                    newest = replace(newest, voters=codec(VotersRecord, 0).decode(record.value, 0))
            except DecodeError as error:
                raise CorruptData(f"the voters of the metadata log cannot be read: {error}") from error
        return newest

    def control(self) -> list[ControlRecord]:
        """Return the control records for a snapshot or a new log."""
        records = []
        if self.kraft_version:
            version = KRaftVersionRecord(version=0, kraft_version=self.kraft_version)
            records.append(ControlRecord(ControlType.KRAFT_VERSION, codec(KRaftVersionRecord, 0).encode(version)))
        if self.voters is not None:
            records.append(ControlRecord(ControlType.KRAFT_VOTERS, codec(VotersRecord, 0).encode(self.voters)))
        return records


def check_voters(found: VoterRecords, node_id: int) -> None:
    """Raise ConfigError if there are voter records and this node is not the only voter."""
    if found.voters is not None:
        ids = [voter.voter_id for voter in found.voters.voters]
        if ids != [node_id]:
            raise ConfigError(
                f"the metadata log has the voters {ids}: this version runs a quorum of one, this node ({node_id})"
            )


def directory_of(found: VoterRecords, node_id: int) -> Uuid:
    """Return the directory id that identifies a voter together with its node id; zero if voters are static."""
    voters = [] if found.voters is None else found.voters.voters
    return next((Uuid(voter.voter_directory_id) for voter in voters if voter.voter_id == node_id), ZERO_UUID)


def voters_in_log(log: MetadataLog, start: int, known: VoterRecords) -> VoterRecords:
    """Return `known` updated from the log from `start` on, committed or not: a voter set applies once it is written."""
    for segment in log.log.segments.from_offset(start):
        for position, header in segment.scan_from(max(start, segment.base_offset)):
            if header.is_control and header.base_offset >= start:
                known = known.after(parse_control_batch(segment.file.read(position, header.size)))
    return known
