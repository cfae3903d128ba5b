"""AddPartitionsToTxn: one transaction from a client (v0-3), batches of transactions from partition leaders (v4+)."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, Int64, String


@request(24, "0-5", flexible="3+", listeners="broker")
class AddPartitionsToTxnRequest(Struct):
    class AddPartitionsToTxnTransaction(Struct):
        transactional_id: String = ""
        producer_id: Int64 = 0
        producer_epoch: Int16 = 0
        verify_only: Bool = False
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = []

    class AddPartitionsToTxnTopic(Struct):
        name: String = ""
        partitions: list[Int32] = []

    transactions: Annotated[list[AddPartitionsToTxnTransaction], Field("4+")] = []
    v3_and_below_transactional_id: Annotated[String, Field("0-3")] = ""
    v3_and_below_producer_id: Annotated[Int64, Field("0-3")] = 0
    v3_and_below_producer_epoch: Annotated[Int16, Field("0-3")] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], Field("0-3")] = []


@response(24, "0-5", flexible="3+")
class AddPartitionsToTxnResponse(Struct):
    class AddPartitionsToTxnResult(Struct):
        transactional_id: String = ""
        topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = []

    class AddPartitionsToTxnTopicResult(Struct):
        name: String = ""
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = []

    class AddPartitionsToTxnPartitionResult(Struct):
        partition_index: Int32 = 0
        partition_error_code: Int16 = 0

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Field("4+", ignorable=True)] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], Field("4+")] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], Field("0-3")] = []
