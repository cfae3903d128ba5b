"""DescribeLogDirs: the broker's log directories, their replicas and their space."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, Int64, String


@request(35, "1-5", flexible="2+", listeners="broker")
class DescribeLogDirsRequest(Struct):
    class DescribableLogDirTopic(Struct):
        topic: String = ""
        partitions: list[Int32] = []

    topics: list[DescribableLogDirTopic] | None = []


@response(35, "1-5", flexible="2+")
class DescribeLogDirsResponse(Struct):
    class DescribeLogDirsResult(Struct):
        error_code: Int16 = 0
        log_dir: String = ""
        topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic] = []
        total_bytes: Annotated[Int64, Field("4+", ignorable=True)] = -1
        usable_bytes: Annotated[Int64, Field("4+", ignorable=True)] = -1
        is_cordoned: Annotated[Bool, Field("5+", ignorable=True)] = False

    class DescribeLogDirsTopic(Struct):
        name: String = ""
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition] = []

    class DescribeLogDirsPartition(Struct):
        partition_index: Int32 = 0
        partition_size: Int64 = 0
        offset_lag: Int64 = 0
        is_future_key: Bool = False

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Field("3+", ignorable=True)] = 0
    results: list[DescribeLogDirsResult] = []
