"""WriteTxnMarkers: a transaction coordinator has commit or abort markers appended by partition leaders."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int8, Int16, Int32, Int64, String


@request(27, "1-2", flexible="1+", listeners="broker")
class WriteTxnMarkersRequest(Struct):
    class WritableTxnMarker(Struct):
        producer_id: Int64 = 0
        producer_epoch: Int16 = 0
        transaction_result: Bool = False
        topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic] = []
        coordinator_epoch: Int32 = 0
        transaction_version: Annotated[Int8, Field("2+", ignorable=True)] = 0

    class WritableTxnMarkerTopic(Struct):
        name: String = ""
        partition_indexes: list[Int32] = []

    markers: list[WritableTxnMarker] = []


@response(27, "1-2", flexible="1+")
class WriteTxnMarkersResponse(Struct):
    class WritableTxnMarkerResult(Struct):
        producer_id: Int64 = 0
        topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = []

    class WritableTxnMarkerTopicResult(Struct):
        name: String = ""
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = []

    class WritableTxnMarkerPartitionResult(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0

    markers: list[WritableTxnMarkerResult] = []
