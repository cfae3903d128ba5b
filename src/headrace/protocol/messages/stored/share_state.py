"""Share-partition state in __share_group_state."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, coordinator_key, coordinator_value
from headrace.protocol.types import Int8, Int16, Int32, Int64, String, Uuid


@coordinator_key(0)
class ShareSnapshotKey(Struct):
    group_id: String = ""
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


@coordinator_value(0, "0", flexible="0+")
class ShareSnapshotValue(Struct):
    class StateBatch(Struct):
        first_offset: Int64 = 0
        last_offset: Int64 = 0
        delivery_state: Int8 = 0
        delivery_count: Int16 = 0

    snapshot_epoch: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, Field(tag=0)] = -1
    create_timestamp: Int64 = 0
    write_timestamp: Int64 = 0
    state_batches: list[StateBatch] = []


@coordinator_key(1)
class ShareUpdateKey(Struct):
    group_id: String = ""
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


@coordinator_value(1, "0", flexible="0+")
class ShareUpdateValue(Struct):
    class StateBatch(Struct):
        first_offset: Int64 = 0
        last_offset: Int64 = 0
        delivery_state: Int8 = 0
        delivery_count: Int16 = 0

    snapshot_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, Field(tag=0)] = -1
    state_batches: list[StateBatch] = []
