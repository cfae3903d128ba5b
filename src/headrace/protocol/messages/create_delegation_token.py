"""CreateDelegationToken: issue a token that its owner may hand on."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bytes, Int16, Int32, Int64, String


@request(38, "1-3", flexible="2+", listeners="broker controller")
class CreateDelegationTokenRequest(Struct):
    class CreatableRenewers(Struct):
        principal_type: String = ""
        principal_name: String = ""

    owner_principal_type: Annotated[String | None, Field("3+")] = ""
    owner_principal_name: Annotated[String | None, Field("3+")] = ""
    renewers: list[CreatableRenewers] = []
    max_lifetime_ms: Int64 = 0


@response(38, "1-3", flexible="2+")
class CreateDelegationTokenResponse(Struct):
    error_code: Int16 = 0
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: Annotated[String, Field("3+")] = ""
    token_requester_principal_name: Annotated[String, Field("3+")] = ""
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    throttle_time_ms: Int32 = 0
