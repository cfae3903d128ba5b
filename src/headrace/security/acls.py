"""ACL bindings, which allow or deny an operation on resources to a principal and host, and filters to find them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.security.principals import parse_principal
from headrace.security.resources import CLUSTER_NAME, Operation, Resource

WILDCARD = "*"  # matches all, as a literal resource name or as a host
ANY = 1  # matches all, in the fields of a filter that are codes


class Pattern(IntEnum):
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    DENY = 2
    ALLOW = 3


_ANY_PATTERN, _MATCH = 1, 2  # only in filters: either pattern type; all that apply to the name
_FILTER_PATTERNS = frozenset({_ANY_PATTERN, _MATCH, *Pattern})
_CODES = {
    "resource type": frozenset({ANY, *Resource} - {Resource.NONE}),
    "operation": frozenset({ANY, *Operation} - {Operation.NONE}),
    "permission type": frozenset({ANY, *Permission}),
}


class Acl(NamedTuple):
    """An ACL with the codes of the wire and the metadata log, so that what a newer Kafka wrote is kept unchanged."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    def __str__(self) -> str:
        """Return the ACL as Kafka's audit log prints it."""
        return (
            f"StandardAcl(resourceType={_name(Resource, self.resource_type)}, resourceName={self.resource_name}, "
            f"patternType={_name(Pattern, self.pattern_type)}, principal={self.principal}, host={self.host}, "
            f"operation={_name(Operation, self.operation)}, permissionType={_name(Permission, self.permission)})"
        )


class AclFilter(NamedTuple):
    """A filter for ACLs; None and ANY match everything."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def check(self) -> None:
        """Raise KafkaError with INVALID_REQUEST if a field has an unknown code."""
        _check_codes(self.resource_type, self.operation, self.permission)
        if self.pattern_type not in _FILTER_PATTERNS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"pattern type {self.pattern_type} is unknown")

    def matches(self, acl: Acl) -> bool:
        """Return whether all fields match the ACL.

        With pattern type MATCH (2), `resource_name` matches the ACLs that apply to a resource of that name: literal,
        prefixed and wildcard.
        """
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, acl.permission)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (_ANY_PATTERN, _MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type != _MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type == Pattern.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name in (self.resource_name, WILDCARD)


def check_acl(acl: Acl) -> None:
    """Raise KafkaError with INVALID_REQUEST if the ACL may not be created."""
    _check_codes(acl.resource_type, acl.operation, acl.permission)
    for name, code in (
        ("resource type", acl.resource_type), ("operation", acl.operation), ("permission type", acl.permission)
    ):  # fmt: skip
        if code == ANY:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} ANY is only allowed in filters: an ACL must name one")
    if acl.pattern_type not in tuple(Pattern):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"pattern type {acl.pattern_type} is not one of LITERAL (3) and PREFIXED (4)"
        )
    if not acl.resource_name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty resource name")
    if acl.resource_type == Resource.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    try:
        parse_principal(acl.principal)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    if not acl.host:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the host must be an address, or * for all")


def _check_codes(resource_type: int, operation: int, permission: int) -> None:
    given = {"resource type": resource_type, "operation": operation, "permission type": permission}
    for name, code in given.items():
        if code not in _CODES[name]:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} {code} is unknown")


def _name(kind: type[IntEnum], code: int) -> str:
    return kind(code).name if code in tuple(kind) else "UNKNOWN"
