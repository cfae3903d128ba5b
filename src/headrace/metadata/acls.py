"""Conversion of ACLs between the metadata log, where each has an id, and the authorizer, which does not need ids."""

from __future__ import annotations

from headrace.base.ids import Uuid
from headrace.protocol.messages.stored.metadata_security import AccessControlEntryRecord
from headrace.security.acls import Acl


def acl_of(record: AccessControlEntryRecord) -> Acl:
    return Acl(
        record.resource_type,
        record.resource_name,
        record.pattern_type,
        record.principal,
        record.host,
        record.operation,
        record.permission_type,
    )


def record_of(acl_id: Uuid, acl: Acl) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
