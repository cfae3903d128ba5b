"""Messages inside other messages and inside control records: classic consumer protocol, principals, markers, KRaft control."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, data
from headrace.protocol.types import Bool, Bytes, Int16, Int32, Int64, String, Uint16, Uuid


@data("0-3")
class ConsumerProtocolSubscription(Struct):
    class TopicPartition(Struct):
        topic: String = ""
        partitions: list[Int32] = []

    topics: list[String] = []
    user_data: Bytes | None = None
    owned_partitions: Annotated[list[TopicPartition], Field("1+", ignorable=True)] = []
    generation_id: Annotated[Int32, Field("2+", ignorable=True)] = -1
    rack_id: Annotated[String | None, Field("3+", ignorable=True)] = None


@data("0-3")
class ConsumerProtocolAssignment(Struct):
    class TopicPartition(Struct):
        topic: String = ""
        partitions: list[Int32] = []

    assigned_partitions: list[TopicPartition] = []
    user_data: Bytes | None = None


@data("0", flexible="0+")
class DefaultPrincipalData(Struct):
    type: String = ""
    name: String = ""
    token_authenticated: Bool = False


@data("0")
class ControlRecordTypeSchema(Struct):
    type: Int16 = 0


@data("0")
class EndTxnMarker(Struct):
    coordinator_epoch: Int32 = 0


@data("0-1", flexible="0+")
class LeaderChangeMessage(Struct):
    class Voter(Struct):
        voter_id: Int32 = 0
        voter_directory_id: Annotated[Uuid, Field("1+")] = ZERO_UUID

    version: Int16 = 0
    leader_id: Int32 = 0
    voters: list[Voter] = []
    granting_voters: list[Voter] = []


@data("0", flexible="0+")
class SnapshotHeaderRecord(Struct):
    version: Int16 = 0
    last_contained_log_timestamp: Int64 = 0


@data("0", flexible="0+")
class SnapshotFooterRecord(Struct):
    version: Int16 = 0


@data("0", flexible="0+")
class KRaftVersionRecord(Struct):
    version: Int16 = 0
    kraft_version: Int16 = 0


@data("0", flexible="0+")
class VotersRecord(Struct):
    class Voter(Struct):
        voter_id: Int32 = 0
        voter_directory_id: Uuid = ZERO_UUID
        endpoints: list[VotersRecord.Endpoint] = []
        kraft_version_feature: VotersRecord.KRaftVersionFeature = field(
            default_factory=lambda: VotersRecord.KRaftVersionFeature()
        )

    class Endpoint(Struct):
        name: String = ""
        host: String = ""
        port: Uint16 = 0

    class KRaftVersionFeature(Struct):
        min_supported_version: Int16 = 0
        max_supported_version: Int16 = 0

    version: Int16 = 0
    voters: list[Voter] = []
