"""DescribeTransactions: the coordinator's view of transactional ids."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String


@request(65, "0", flexible="0+", listeners="broker")
class DescribeTransactionsRequest(Struct):
    transactional_ids: list[String] = []


@response(65, "0", flexible="0+")
class DescribeTransactionsResponse(Struct):
    class TransactionState(Struct):
        error_code: Int16 = 0
        transactional_id: String = ""
        transaction_state: String = ""
        transaction_timeout_ms: Int32 = 0
        transaction_start_time_ms: Int64 = 0
        producer_id: Int64 = 0
        producer_epoch: Int16 = 0
        topics: list[DescribeTransactionsResponse.TopicData] = []

    class TopicData(Struct):
        topic: String = ""
        partitions: list[Int32] = []

    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = []
