"""StreamsGroupDescribe: topology, members and tasks of streams groups (KIP-1071)."""

from __future__ import annotations

from msgspec import field

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, Int64, String, Uint16


@request(89, "0", flexible="0+", listeners="broker")
class StreamsGroupDescribeRequest(Struct):
    group_ids: list[String] = []
    include_authorized_operations: Bool = False


@response(89, "0", flexible="0+")
class StreamsGroupDescribeResponse(Struct):
    class DescribedGroup(Struct):
        error_code: Int16 = 0
        error_message: String | None = None
        group_id: String = ""
        group_state: String = ""
        group_epoch: Int32 = 0
        assignment_epoch: Int32 = 0
        topology: StreamsGroupDescribeResponse.Topology | None = None
        members: list[StreamsGroupDescribeResponse.Member] = []
        authorized_operations: Int32 = -(2**31)

    class Topology(Struct):
        epoch: Int32 = 0
        subtopologies: list[StreamsGroupDescribeResponse.Subtopology] | None = None

    class Subtopology(Struct):
        subtopology_id: String = ""
        source_topics: list[String] = []
        repartition_sink_topics: list[String] = []
        state_changelog_topics: list[StreamsGroupDescribeResponse.TopicInfo] = []
        repartition_source_topics: list[StreamsGroupDescribeResponse.TopicInfo] = []

    class TopicInfo(Struct):
        name: String = ""
        partitions: Int32 = 0
        replication_factor: Int16 = 0
        topic_configs: list[StreamsGroupDescribeResponse.KeyValue] = []

    class KeyValue(Struct):
        key: String = ""
        value: String = ""

    class Member(Struct):
        member_id: String = ""
        member_epoch: Int32 = 0
        instance_id: String | None = None
        rack_id: String | None = None
        client_id: String = ""
        client_host: String = ""
        topology_epoch: Int32 = 0
        process_id: String = ""
        user_endpoint: StreamsGroupDescribeResponse.Endpoint | None = None
        client_tags: list[StreamsGroupDescribeResponse.KeyValue] = []
        task_offsets: list[StreamsGroupDescribeResponse.TaskOffset] = []
        task_end_offsets: list[StreamsGroupDescribeResponse.TaskOffset] = []
        assignment: StreamsGroupDescribeResponse.Assignment = field(
            default_factory=lambda: StreamsGroupDescribeResponse.Assignment()
        )
        target_assignment: StreamsGroupDescribeResponse.Assignment = field(
            default_factory=lambda: StreamsGroupDescribeResponse.Assignment()
        )
        is_classic: Bool = False

    class Endpoint(Struct):
        host: String = ""
        port: Uint16 = 0

    class TaskOffset(Struct):
        subtopology_id: String = ""
        partition: Int32 = 0
        offset: Int64 = 0

    class Assignment(Struct):
        active_tasks: list[StreamsGroupDescribeResponse.TaskIds] = []
        standby_tasks: list[StreamsGroupDescribeResponse.TaskIds] = []
        warmup_tasks: list[StreamsGroupDescribeResponse.TaskIds] = []

    class TaskIds(Struct):
        subtopology_id: String = ""
        partitions: list[Int32] = []

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = []
