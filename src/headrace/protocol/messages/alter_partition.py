"""AlterPartition: a partition leader proposes a new in-sync replica set to the controller."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int8, Int16, Int32, Int64, Uuid


@request(56, "2-3", flexible="2+", listeners="controller")
class AlterPartitionRequest(Struct):
    class TopicData(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[AlterPartitionRequest.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0
        leader_epoch: Int32 = 0
        new_isr: Annotated[list[Int32], Field("2")] = []
        new_isr_with_epochs: Annotated[list[AlterPartitionRequest.BrokerState], Field("3+")] = []
        leader_recovery_state: Int8 = 0
        partition_epoch: Int32 = 0

    class BrokerState(Struct):
        broker_id: Int32 = 0
        broker_epoch: Int64 = -1

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    topics: list[TopicData] = []


@response(56, "2-3", flexible="2+")
class AlterPartitionResponse(Struct):
    class TopicData(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[AlterPartitionResponse.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0
        leader_id: Int32 = 0
        leader_epoch: Int32 = 0
        isr: list[Int32] = []
        leader_recovery_state: Int8 = 0
        partition_epoch: Int32 = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[TopicData] = []
