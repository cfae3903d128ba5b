"""InitProducerId: hand out or bump a producer id and epoch; v6 (two-phase commit) is not stable."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, Int64, String


@request(22, "0-6", flexible="2+", listeners="broker", latest_version_unstable=True)
class InitProducerIdRequest(Struct):
    transactional_id: String | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, Field("3+")] = -1
    producer_epoch: Annotated[Int16, Field("3+")] = -1
    enable2_pc: Annotated[Bool, Field("6+")] = False
    keep_prepared_txn: Annotated[Bool, Field("6+")] = False


@response(22, "0-6", flexible="2+")
class InitProducerIdResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Annotated[Int64, Field("6+")] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, Field("6+")] = -1
