"""AlterUserScramCredentials: upsert or delete SCRAM credentials; the client salts the password."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bytes, Int8, Int16, Int32, String


@request(51, "0", flexible="0+", listeners="broker controller")
class AlterUserScramCredentialsRequest(Struct):
    class ScramCredentialDeletion(Struct):
        name: String = ""
        mechanism: Int8 = 0

    class ScramCredentialUpsertion(Struct):
        name: String = ""
        mechanism: Int8 = 0
        iterations: Int32 = 0
        salt: Bytes = b""
        salted_password: Bytes = b""

    deletions: list[ScramCredentialDeletion] = []
    upsertions: list[ScramCredentialUpsertion] = []


@response(51, "0", flexible="0+")
class AlterUserScramCredentialsResponse(Struct):
    class AlterUserScramCredentialsResult(Struct):
        user: String = ""
        error_code: Int16 = 0
        error_message: String | None = ""

    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = []
