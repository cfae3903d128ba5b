"""Committed offsets and classic groups in __consumer_offsets."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, coordinator_key, coordinator_value
from headrace.protocol.types import Bytes, Int32, Int64, String, Uuid


@coordinator_key(0)
class LegacyOffsetCommitKey(Struct):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


@coordinator_value(0, "0")
class LegacyOffsetCommitValue(Struct):
    offset: Int64 = 0
    metadata: String = ""
    commit_timestamp: Int64 = 0


@coordinator_key(1)
class OffsetCommitKey(Struct):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


@coordinator_value(1, "0-4", flexible="4+")
class OffsetCommitValue(Struct):
    offset: Int64 = 0
    leader_epoch: Annotated[Int32, Field("3+", ignorable=True)] = -1
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Annotated[Int64, Field("1", ignorable=True)] = -1
    topic_id: Annotated[Uuid, Field("4+", tag=0, ignorable=True)] = ZERO_UUID


@coordinator_key(2)
class GroupMetadataKey(Struct):
    group: String = ""


@coordinator_value(2, "0-4", flexible="4+")
class GroupMetadataValue(Struct):
    class MemberMetadata(Struct):
        member_id: String = ""
        group_instance_id: Annotated[String | None, Field("3+", ignorable=True)] = None
        client_id: String = ""
        client_host: String = ""
        rebalance_timeout: Annotated[Int32, Field("1+", ignorable=True)] = -1
        session_timeout: Int32 = 0
        subscription: Bytes = b""
        assignment: Bytes = b""

    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = ""
    leader: String | None = ""
    current_state_timestamp: Annotated[Int64, Field("2+", ignorable=True)] = -1
    members: list[MemberMetadata] = []
