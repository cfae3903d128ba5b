"""Metadata records about topics and partitions.

In a PartitionChangeRecord an absent (null or -2) field means unchanged.
"""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, metadata_record
from headrace.protocol.types import Int8, Int32, String, Uuid


@metadata_record(2, "0", flexible="0+")
class TopicRecord(Struct):
    name: String = ""
    topic_id: Uuid = ZERO_UUID


@metadata_record(9, "0", flexible="0+")
class RemoveTopicRecord(Struct):
    topic_id: Uuid = ZERO_UUID


@metadata_record(3, "0-2", flexible="0+")
class PartitionRecord(Struct):
    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    replicas: list[Int32] = []
    isr: list[Int32] = []
    removing_replicas: list[Int32] = []
    adding_replicas: list[Int32] = []
    leader: Int32 = -1
    leader_recovery_state: Annotated[Int8, Field(tag=0)] = 0
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: Annotated[list[Uuid], Field("1+")] = []
    eligible_leader_replicas: Annotated[list[Int32] | None, Field("2+", tag=1)] = None
    last_known_elr: Annotated[list[Int32] | None, Field("2+", tag=2)] = None


@metadata_record(5, "0-2", flexible="0+")
class PartitionChangeRecord(Struct):
    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    isr: Annotated[list[Int32] | None, Field(tag=0)] = None
    leader: Annotated[Int32, Field(tag=1)] = -2
    replicas: Annotated[list[Int32] | None, Field(tag=2)] = None
    removing_replicas: Annotated[list[Int32] | None, Field(tag=3)] = None
    adding_replicas: Annotated[list[Int32] | None, Field(tag=4)] = None
    leader_recovery_state: Annotated[Int8, Field(tag=5)] = -1
    directories: Annotated[list[Uuid] | None, Field("1+", tag=8)] = None
    eligible_leader_replicas: Annotated[list[Int32] | None, Field("2+", tag=6)] = None
    last_known_elr: Annotated[list[Int32] | None, Field("2+", tag=7)] = None


@metadata_record(28, "0", flexible="0+")
class ClearElrRecord(Struct):
    topic_name: String = ""
