"""Metadata records about ACLs, SCRAM credentials and delegation tokens."""

from __future__ import annotations

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, metadata_record
from headrace.protocol.types import Bytes, Int8, Int32, Int64, String, Uuid


@metadata_record(18, "0", flexible="0+")
class AccessControlEntryRecord(Struct):
    id: Uuid = ZERO_UUID
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 0
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@metadata_record(19, "0", flexible="0+")
class RemoveAccessControlEntryRecord(Struct):
    id: Uuid = ZERO_UUID


@metadata_record(11, "0", flexible="0+")
class UserScramCredentialRecord(Struct):
    name: String = ""
    mechanism: Int8 = 0
    salt: Bytes = b""
    stored_key: Bytes = b""
    server_key: Bytes = b""
    iterations: Int32 = 0


@metadata_record(22, "0", flexible="0+")
class RemoveUserScramCredentialRecord(Struct):
    name: String = ""
    mechanism: Int8 = 0


@metadata_record(10, "0", flexible="0+")
class DelegationTokenRecord(Struct):
    owner: String = ""
    requester: String = ""
    renewers: list[String] = []
    issue_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    expiration_timestamp: Int64 = 0
    token_id: String = ""


@metadata_record(26, "0", flexible="0+")
class RemoveDelegationTokenRecord(Struct):
    token_id: String = ""
