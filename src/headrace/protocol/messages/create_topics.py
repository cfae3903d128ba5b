"""CreateTopics: by counts or by explicit assignments, with configs."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int8, Int16, Int32, String, Uuid


@request(19, "2-7", flexible="5+", listeners="broker controller")
class CreateTopicsRequest(Struct):
    class CreatableTopic(Struct):
        name: String = ""
        num_partitions: Int32 = 0
        replication_factor: Int16 = 0
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = []
        configs: list[CreateTopicsRequest.CreatableTopicConfig] = []

    class CreatableReplicaAssignment(Struct):
        partition_index: Int32 = 0
        broker_ids: list[Int32] = []

    class CreatableTopicConfig(Struct):
        name: String = ""
        value: String | None = ""

    topics: list[CreatableTopic] = []
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


@response(19, "2-7", flexible="5+")
class CreateTopicsResponse(Struct):
    class CreatableTopicResult(Struct):
        name: String = ""
        topic_id: Annotated[Uuid, Field("7+", ignorable=True)] = ZERO_UUID
        error_code: Int16 = 0
        error_message: String | None = ""
        topic_config_error_code: Annotated[Int16, Field("5+", tag=0, ignorable=True)] = 0
        num_partitions: Annotated[Int32, Field("5+", ignorable=True)] = -1
        replication_factor: Annotated[Int16, Field("5+", ignorable=True)] = -1
        configs: Annotated[list[CreateTopicsResponse.CreatableTopicConfigs] | None, Field("5+", ignorable=True)] = []

    class CreatableTopicConfigs(Struct):
        name: String = ""
        value: String | None = ""
        read_only: Bool = False
        config_source: Int8 = -1
        is_sensitive: Bool = False

    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = []
