"""EndTxn: commit or abort; v5 returns the bumped producer epoch (KIP-890)."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, Int64, String


@request(26, "0-5", flexible="3+", listeners="broker")
class EndTxnRequest(Struct):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


@response(26, "0-5", flexible="3+")
class EndTxnResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, Field("5+", ignorable=True)] = -1
    producer_epoch: Annotated[Int16, Field("5+", ignorable=True)] = -1
