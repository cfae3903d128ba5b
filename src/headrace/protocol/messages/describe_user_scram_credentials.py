"""DescribeUserScramCredentials: mechanisms and iterations of users, never secrets."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int8, Int16, Int32, String


@request(50, "0", flexible="0+", listeners="broker controller")
class DescribeUserScramCredentialsRequest(Struct):
    class UserName(Struct):
        name: String = ""

    users: list[UserName] | None = []


@response(50, "0", flexible="0+")
class DescribeUserScramCredentialsResponse(Struct):
    class DescribeUserScramCredentialsResult(Struct):
        user: String = ""
        error_code: Int16 = 0
        error_message: String | None = ""
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo] = []

    class CredentialInfo(Struct):
        mechanism: Int8 = 0
        iterations: Int32 = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: list[DescribeUserScramCredentialsResult] = []
