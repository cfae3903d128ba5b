"""Metadata: brokers, topics and partition leaders, the map by which clients route."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, String, Uuid


@request(3, "0-13", flexible="9+", listeners="broker")
class MetadataRequest(Struct):
    class MetadataRequestTopic(Struct):
        topic_id: Annotated[Uuid, Field("10+", ignorable=True)] = ZERO_UUID
        name: Annotated[String | None, Field(nullable="10+")] = ""

    topics: Annotated[list[MetadataRequestTopic] | None, Field(nullable="1+")] = []
    allow_auto_topic_creation: Annotated[Bool, Field("4+")] = True
    include_cluster_authorized_operations: Annotated[Bool, Field("8-10")] = False
    include_topic_authorized_operations: Annotated[Bool, Field("8+")] = False


@response(3, "0-13", flexible="9+")
class MetadataResponse(Struct):
    class MetadataResponseBroker(Struct):
        node_id: Int32 = 0
        host: String = ""
        port: Int32 = 0
        rack: Annotated[String | None, Field("1+", ignorable=True)] = None

    class MetadataResponseTopic(Struct):
        error_code: Int16 = 0
        name: Annotated[String | None, Field(nullable="12+")] = ""
        topic_id: Annotated[Uuid, Field("10+", ignorable=True)] = ZERO_UUID
        is_internal: Annotated[Bool, Field("1+", ignorable=True)] = False
        partitions: list[MetadataResponse.MetadataResponsePartition] = []
        topic_authorized_operations: Annotated[Int32, Field("8+")] = -(2**31)

    class MetadataResponsePartition(Struct):
        error_code: Int16 = 0
        partition_index: Int32 = 0
        leader_id: Int32 = 0
        leader_epoch: Annotated[Int32, Field("7+", ignorable=True)] = -1
        replica_nodes: list[Int32] = []
        isr_nodes: list[Int32] = []
        offline_replicas: Annotated[list[Int32], Field("5+", ignorable=True)] = []

    throttle_time_ms: Annotated[Int32, Field("3+", ignorable=True)] = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: Annotated[String | None, Field("2+", ignorable=True)] = None
    controller_id: Annotated[Int32, Field("1+", ignorable=True)] = -1
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: Annotated[Int32, Field("8-10")] = -(2**31)
    error_code: Annotated[Int16, Field("13+", ignorable=True)] = 0
