"""Transactions in __transaction_state."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, coordinator_key, coordinator_value
from headrace.protocol.types import Int8, Int16, Int32, Int64, String


@coordinator_key(0)
class TransactionLogKey(Struct):
    transactional_id: String = ""


@coordinator_value(0, "0-1", flexible="1+")
class TransactionLogValue(Struct):
    class PartitionsSchema(Struct):
        topic: String = ""
        partition_ids: list[Int32] = []

    producer_id: Int64 = 0
    previous_producer_id: Annotated[Int64, Field("1+", tag=0)] = -1
    next_producer_id: Annotated[Int64, Field("1+", tag=1)] = -1
    producer_epoch: Int16 = 0
    next_producer_epoch: Annotated[Int16, Field("1+", tag=3)] = -1
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = []
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Annotated[Int16, Field("1+", tag=2)] = 0
