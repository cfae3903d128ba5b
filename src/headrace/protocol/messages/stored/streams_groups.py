"""Streams groups in __consumer_offsets."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, coordinator_key, coordinator_value
from headrace.protocol.types import Int8, Int16, Int32, Int64, String, Uint16


@coordinator_key(17)
class StreamsGroupMetadataKey(Struct):
    group_id: String = ""


@coordinator_value(17, "0", flexible="0+")
class StreamsGroupMetadataValue(Struct):
    class LastAssignmentConfig(Struct):
        key: String = ""
        value: String = ""

    epoch: Int32 = 0
    metadata_hash: Int64 = 0
    validated_topology_epoch: Annotated[Int32, Field(tag=0)] = -1
    last_assignment_configs: Annotated[list[LastAssignmentConfig] | None, Field(tag=1)] = []


@coordinator_key(19)
class StreamsGroupMemberMetadataKey(Struct):
    group_id: String = ""
    member_id: String = ""


@coordinator_value(19, "0", flexible="0+")
class StreamsGroupMemberMetadataValue(Struct):
    class Endpoint(Struct):
        host: String = ""
        port: Uint16 = 0

    class KeyValue(Struct):
        key: String = ""
        value: String = ""

    instance_id: String | None = ""
    rack_id: String | None = ""
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = []


@coordinator_key(20)
class StreamsGroupTargetAssignmentMetadataKey(Struct):
    group_id: String = ""


@coordinator_value(20, "0", flexible="0+")
class StreamsGroupTargetAssignmentMetadataValue(Struct):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Annotated[Int64, Field(tag=0)] = 0


@coordinator_key(21)
class StreamsGroupTargetAssignmentMemberKey(Struct):
    group_id: String = ""
    member_id: String = ""


@coordinator_value(21, "0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue(Struct):
    class TaskIds(Struct):
        subtopology_id: String = ""
        partitions: list[Int32] = []

    active_tasks: list[TaskIds] = []
    standby_tasks: list[TaskIds] = []
    warmup_tasks: list[TaskIds] = []


@coordinator_key(22)
class StreamsGroupCurrentMemberAssignmentKey(Struct):
    group_id: String = ""
    member_id: String = ""


@coordinator_value(22, "0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue(Struct):
    class TaskIds(Struct):
        subtopology_id: String = ""
        partitions: list[Int32] = []
        assignment_epochs: Annotated[list[Int32] | None, Field(tag=0)] = []

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    active_tasks: list[TaskIds] = []
    standby_tasks: list[TaskIds] = []
    warmup_tasks: list[TaskIds] = []
    active_tasks_pending_revocation: list[TaskIds] = []
    standby_tasks_pending_revocation: list[TaskIds] = []
    warmup_tasks_pending_revocation: list[TaskIds] = []


@coordinator_key(23)
class StreamsGroupTopologyKey(Struct):
    group_id: String = ""


@coordinator_value(23, "0", flexible="0+")
class StreamsGroupTopologyValue(Struct):
    class Subtopology(Struct):
        subtopology_id: String = ""
        source_topics: list[String] = []
        source_topic_regex: list[String] = []
        state_changelog_topics: list[StreamsGroupTopologyValue.TopicInfo] = []
        repartition_sink_topics: list[String] = []
        repartition_source_topics: list[StreamsGroupTopologyValue.TopicInfo] = []
        copartition_groups: list[StreamsGroupTopologyValue.CopartitionGroup] = []

    class TopicInfo(Struct):
        name: String = ""
        partitions: Int32 = 0
        replication_factor: Int16 = 0
        topic_configs: list[StreamsGroupTopologyValue.TopicConfig] = []

    class TopicConfig(Struct):
        key: String = ""
        value: String = ""

    class CopartitionGroup(Struct):
        source_topics: list[Int16] = []
        source_topic_regex: list[Int16] = []
        repartition_source_topics: list[Int16] = []

    epoch: Int32 = 0
    subtopologies: list[Subtopology] = []
