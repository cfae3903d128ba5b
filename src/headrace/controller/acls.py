"""CreateAcls and DeleteAcls: each creation has a separate error; deletions are by filter and return what matched."""

from __future__ import annotations

from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid, new_uuid
from headrace.controller.context import ControllerContext, Tx
from headrace.metadata.acls import acl_of, record_of
from headrace.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from headrace.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from headrace.protocol.messages.stored.metadata_security import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
)
from headrace.security.acls import Acl, AclFilter, check_acl
from headrace.security.authorizer import StandardAuthorizer
from headrace.statemachine.undo import Table

# Limits that keep a request's records in one batch of the metadata log.
CHANGES_PER_REQUEST_MAX = 10_000
CHARACTERS_PER_REQUEST_MAX = 1 << 20

Created = CreateAclsResponse.AclCreationResult
Filtered = DeleteAclsResponse.DeleteAclsFilterResult


def acl_of_request(creation: CreateAclsRequest.AclCreation) -> Acl:
    return Acl(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


def filter_of_request(requested: DeleteAclsRequest.DeleteAclsFilter | DescribeAclsRequest) -> AclFilter:
    return AclFilter(
        requested.resource_type_filter,
        requested.resource_name_filter,
        requested.pattern_type_filter,
        requested.principal_filter,
        requested.host_filter,
        requested.operation,
        requested.permission_type,
    )


def create(context: ControllerContext, request: CreateAclsRequest, now_ms: int, tx: Tx) -> None:
    if len(request.creations) > CHANGES_PER_REQUEST_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"more than {CHANGES_PER_REQUEST_MAX} ACLs in one request")
    results: list[Created] = []
    remaining = CHARACTERS_PER_REQUEST_MAX
    for creation in request.creations:
        acl = acl_of_request(creation)
        try:
            check_acl(acl)
            remaining -= len(acl.resource_name) + len(acl.principal) + len(acl.host)
            if remaining < 0:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"more than {CHARACTERS_PER_REQUEST_MAX} characters of names in one request",
                )
        except KafkaError as error:
            results.append(Created(error_code=error.code, error_message=error.message))
            continue
        if acl not in context.state.acl_ids:
            tx.emit(record_of(new_uuid(context.random), acl))
        results.append(Created())
    tx.reply(tx.ticket, CreateAclsResponse(results=results))


def delete(context: ControllerContext, request: DeleteAclsRequest, now_ms: int, tx: Tx) -> None:
    """Delete the ACLs that match the filters.

    Every filter is applied to the ACLs before the request, so an ACL that two filters match is in both results.
    """
    known = [(acl_id, acl_of(record)) for acl_id, record in context.state.acls.items()]
    matched: dict[Uuid, None] = {}
    results: list[Filtered] = []
    for requested in request.filters:
        found = filter_of_request(requested)
        try:
            found.check()
        except KafkaError as error:
            results.append(Filtered(error_code=error.code, error_message=error.message))
            continue
        matching = [(acl_id, acl) for acl_id, acl in known if found.matches(acl)]
        matched |= dict.fromkeys(acl_id for acl_id, _ in matching)
        results.append(Filtered(error_message=None, matching_acls=[_describe(acl) for _, acl in matching]))
    if len(matched) > CHANGES_PER_REQUEST_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"the filters match {len(matched)} ACLs; at most {CHANGES_PER_REQUEST_MAX} are deleted at once",
        )
    for acl_id in matched:
        tx.emit(RemoveAccessControlEntryRecord(id=acl_id))
    tx.reply(tx.ticket, DeleteAclsResponse(filter_results=results))


def _describe(acl: Acl) -> DeleteAclsResponse.DeleteAclsMatchingAcl:
    return DeleteAclsResponse.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


class AclFollower:
    """Keeps the controller's authorizer up to date with the committed ACLs."""

    def __init__(self, context: ControllerContext, authorizer: StandardAuthorizer) -> None:
        self._context = context
        self._authorizer = authorizer
        self._touched: list[tuple[int, Uuid]] = []  # offset of an uncommitted record, and the ACL that it changes
        self._known: set[Uuid] = set()  # ACLs of the authorizer

    def load(self) -> None:
        """Load all ACLs and drop those that are gone; call this when the controller's state was replaced."""
        self._touched = []
        for acl_id in self._known | committed_acls(self._context).keys():
            self._update(acl_id)

    def applied(self, record: Any, offset: int) -> None:
        if isinstance(record, AccessControlEntryRecord | RemoveAccessControlEntryRecord):
            self._touched.append((offset, Uuid(record.id)))

    def committed(self, offset: int) -> None:
        if not self._touched:
            return
        later = []
        for at, acl_id in self._touched:
            if at <= offset:
                self._update(acl_id)
            else:
                later.append((at, acl_id))
        self._touched = later

    def _update(self, acl_id: Uuid) -> None:
        table = self._context.state.acls
        assert isinstance(table, Table)
        record = table.committed(acl_id)
        (self._known.discard if record is None else self._known.add)(acl_id)
        self._authorizer.change(acl_id, None if record is None else acl_of(record))


def committed_acls(context: ControllerContext) -> dict[Uuid, AccessControlEntryRecord]:
    """Return the committed ACLs, sorted by id."""
    table = context.state.acls
    assert isinstance(table, Table)
    return dict(sorted(table.committed_items()))
