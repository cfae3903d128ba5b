"""StreamsGroupHeartbeat: join with a topology, stay in and leave a streams group (KIP-1071)."""

from __future__ import annotations

from msgspec import field

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bool, Int8, Int16, Int32, Int64, String, Uint16


@request(88, "0", flexible="0+", listeners="broker")
class StreamsGroupHeartbeatRequest(Struct):
    class Topology(Struct):
        epoch: Int32 = 0
        subtopologies: list[StreamsGroupHeartbeatRequest.Subtopology] = []

    class Subtopology(Struct):
        subtopology_id: String = ""
        source_topics: list[String] = []
        source_topic_regex: list[String] = []
        state_changelog_topics: list[StreamsGroupHeartbeatRequest.TopicInfo] = []
        repartition_sink_topics: list[String] = []
        repartition_source_topics: list[StreamsGroupHeartbeatRequest.TopicInfo] = []
        copartition_groups: list[StreamsGroupHeartbeatRequest.CopartitionGroup] = []

    class TopicInfo(Struct):
        name: String = ""
        partitions: Int32 = 0
        replication_factor: Int16 = 0
        topic_configs: list[StreamsGroupHeartbeatRequest.KeyValue] = []

    class KeyValue(Struct):
        key: String = ""
        value: String = ""

    class CopartitionGroup(Struct):
        source_topics: list[Int16] = []
        source_topic_regex: list[Int16] = []
        repartition_source_topics: list[Int16] = []

    class TaskIds(Struct):
        subtopology_id: String = ""
        partitions: list[Int32] = []

    class Endpoint(Struct):
        host: String = ""
        port: Uint16 = 0

    class TaskOffset(Struct):
        subtopology_id: String = ""
        partition: Int32 = 0
        offset: Int64 = 0

    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    endpoint_information_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    topology: Topology | None = None
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    process_id: String | None = None
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] | None = None
    task_offsets: list[TaskOffset] | None = None
    task_end_offsets: list[TaskOffset] | None = None
    shutdown_application: Bool = False


@response(88, "0", flexible="0+")
class StreamsGroupHeartbeatResponse(Struct):
    class Status(Struct):
        status_code: Int8 = 0
        status_detail: String = ""

    class TaskIds(Struct):
        subtopology_id: String = ""
        partitions: list[Int32] = []

    class EndpointToPartitions(Struct):
        user_endpoint: StreamsGroupHeartbeatResponse.Endpoint = field(
            default_factory=lambda: StreamsGroupHeartbeatResponse.Endpoint()
        )
        active_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition] = []
        standby_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition] = []

    class Endpoint(Struct):
        host: String = ""
        port: Uint16 = 0

    class TopicPartition(Struct):
        topic: String = ""
        partitions: list[Int32] = []

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String = ""
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    acceptable_recovery_lag: Int32 = 0
    task_offset_interval_ms: Int32 = 0
    status: list[Status] | None = []
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    endpoint_information_epoch: Int32 = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None
