"""DescribeDelegationToken: the tokens that the caller may see."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bytes, Int16, Int32, Int64, String


@request(41, "1-3", flexible="2+", listeners="broker controller")
class DescribeDelegationTokenRequest(Struct):
    class DescribeDelegationTokenOwner(Struct):
        principal_type: String = ""
        principal_name: String = ""

    owners: list[DescribeDelegationTokenOwner] | None = []


@response(41, "1-3", flexible="2+")
class DescribeDelegationTokenResponse(Struct):
    class DescribedDelegationToken(Struct):
        principal_type: String = ""
        principal_name: String = ""
        token_requester_principal_type: Annotated[String, Field("3+")] = ""
        token_requester_principal_name: Annotated[String, Field("3+")] = ""
        issue_timestamp: Int64 = 0
        expiry_timestamp: Int64 = 0
        max_timestamp: Int64 = 0
        token_id: String = ""
        hmac: Bytes = b""
        renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer] = []

    class DescribedDelegationTokenRenewer(Struct):
        principal_type: String = ""
        principal_name: String = ""

    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = []
    throttle_time_ms: Int32 = 0
