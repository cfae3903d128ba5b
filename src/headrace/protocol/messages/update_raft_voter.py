"""UpdateRaftVoter: a voter tells the leader its endpoints and kraft.version range."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, String, Uint16, Uuid


@request(82, "0", flexible="0+", listeners="controller")
class UpdateRaftVoterRequest(Struct):
    class Listener(Struct):
        name: String = ""
        host: String = ""
        port: Uint16 = 0

    class KRaftVersionFeature(Struct):
        min_supported_version: Int16 = 0
        max_supported_version: Int16 = 0

    cluster_id: String | None = ""
    current_leader_epoch: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: list[Listener] = []
    kraft_version_feature: KRaftVersionFeature = field(default_factory=KRaftVersionFeature)


@response(82, "0", flexible="0+")
class UpdateRaftVoterResponse(Struct):
    class CurrentLeader(Struct):
        leader_id: Int32 = -1
        leader_epoch: Int32 = -1
        host: String = ""
        port: Int32 = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    current_leader: Annotated[CurrentLeader, Field(tag=0)] = field(default_factory=CurrentLeader)
