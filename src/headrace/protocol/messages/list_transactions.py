"""ListTransactions: the transactions that this broker coordinates, filtered."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String


@request(66, "0-2", flexible="0+", listeners="broker")
class ListTransactionsRequest(Struct):
    state_filters: list[String] = []
    producer_id_filters: list[Int64] = []
    duration_filter: Annotated[Int64, Field("1+")] = -1
    transactional_id_pattern: Annotated[String | None, Field("2+")] = None


@response(66, "0-2", flexible="0+")
class ListTransactionsResponse(Struct):
    class TransactionState(Struct):
        transactional_id: String = ""
        producer_id: Int64 = 0
        transaction_state: String = ""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String] = []
    transaction_states: list[TransactionState] = []
