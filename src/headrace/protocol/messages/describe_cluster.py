"""DescribeCluster: cluster id, controller and the brokers (or controllers) with their endpoints."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int8, Int16, Int32, String


@request(60, "0-2", flexible="0+", listeners="broker controller")
class DescribeClusterRequest(Struct):
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, Field("1+")] = 1
    include_fenced_brokers: Annotated[Bool, Field("2+")] = False


@response(60, "0-2", flexible="0+")
class DescribeClusterResponse(Struct):
    class DescribeClusterBroker(Struct):
        broker_id: Int32 = 0
        host: String = ""
        port: Int32 = 0
        rack: String | None = None
        is_fenced: Annotated[Bool, Field("2+")] = False

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Annotated[Int8, Field("1+")] = 1
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: Int32 = -(2**31)
