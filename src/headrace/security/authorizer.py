"""Kafka's StandardAuthorizer: finds the rule that decides whether a principal may perform an operation.

Super users may do everything. For others, all ACLs on the resource count: those with its literal name, those with a prefix of it,
and those on `*`. One that denies outranks all that allow. If no ACL is on the resource, `allow.everyone.if.no.acl.found` decides; if
there are some, but none for this principal, host and operation, the operation is denied.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.base.ids import Uuid
from headrace.security.acls import WILDCARD, Acl, Pattern, Permission
from headrace.security.principals import EVERYBODY, Principal
from headrace.security.resources import OPERATIONS, Operation, Resource

DECISIONS_MAX = 20_000  # size of the cache, which is cleared when it is full
# The operations that imply the key. Only ACLs that allow imply others; one that denies covers its own operation only.
_IMPLIES = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
_ANY_NAME = ""  # not a valid resource name; the cache key of decisions on a whole resource type
_SOME_NAME = "hardcode"  # the name that Kafka checks to find out whether all resources of a type are allowed


class Rule(NamedTuple):
    allowed: bool
    text: str  # for the audit log


_SUPER_USER = Rule(True, "SuperUser")
_DEFAULT_ALLOW = Rule(True, "DefaultAllow")
_DEFAULT_DENY = Rule(False, "DefaultDeny")


class StandardAuthorizer:
    """Decides from an index of ACLs and caches the decisions; `change` follows the metadata log."""

    def __init__(self, super_users: frozenset[Principal], *, allow_if_no_acl: bool) -> None:
        self._super_users = super_users
        self._no_acl = _DEFAULT_ALLOW if allow_if_no_acl else _DEFAULT_DENY
        self._acls: dict[Uuid, Acl] = {}
        self._literal: dict[tuple[int, str], dict[Uuid, Acl]] = {}
        self._prefixed: dict[int, dict[str, dict[Uuid, Acl]]] = {}  # by resource type, then by prefix
        self._lengths: dict[int, dict[int, int]] = {}  # by resource type: how many prefixes have each length
        self._decisions: dict[tuple[int, Principal, str, str], Rule] = {}

    def __contains__(self, acl: Acl) -> bool:
        return acl._replace(host=canonical_host(acl.host)) in self._bucket(acl).values()

    def change(self, acl_id: Uuid, acl: Acl | None) -> None:
        """Add or replace an ACL, or remove it if `acl` is None."""
        old = self._acls.pop(acl_id, None)
        if old is not None:
            self._remove(acl_id, old)
        if acl is not None:
            acl = acl._replace(host=canonical_host(acl.host))
            self._acls[acl_id] = acl
            self._add(acl_id, acl)
        self._decisions.clear()

    def decide(self, principal: Principal, host: str, operation: Operation, resource: Resource, name: str) -> Rule:
        key = (operation << 8 | resource, principal, host, name)
        rule = self._decisions.get(key)
        if rule is None:
            rule = self._find(principal, host, operation, resource, name)
            self._cache(key, rule)
        return rule

    def decide_any(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> Rule:
        """Decide whether the operation is allowed on any resource of this type."""
        key = (operation << 8 | resource, principal, host, _ANY_NAME)
        rule = self._decisions.get(key)
        if rule is None:
            rule = self._find(principal, host, operation, resource, _SOME_NAME)
            if not rule.allowed:
                rule = self._find_any(principal, host, operation, resource)
            self._cache(key, rule)
        return rule

    def operations(self, principal: Principal, host: str, resource: Resource, name: str) -> int:
        """Return the bit field of all operations allowed on one resource."""
        field = 0
        for operation in OPERATIONS[resource]:
            if self.decide(principal, host, operation, resource, name).allowed:
                field |= 1 << operation
        return field

    # --- rules

    def _find(self, principal: Principal, host: str, operation: Operation, resource: Resource, name: str) -> Rule:
        if principal in self._super_users:
            return _SUPER_USER
        host = canonical_host(host)
        names = (str(principal), str(EVERYBODY))
        allowing: Acl | None = None
        any_acl = False
        for acl in self._about(resource, name):
            any_acl = True
            if not _applies(acl, names, host, operation):
                continue
            if acl.permission != Permission.ALLOW:
                return Rule(False, f"MatchingAcl(acl={acl})")
            allowing = acl
        if allowing is not None:
            return Rule(True, f"MatchingAcl(acl={allowing})")
        return _DEFAULT_DENY if any_acl else self._no_acl

    def _find_any(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> Rule:
        """Find an ACL that allows the operation and is not completely covered by one that denies it."""
        names = (str(principal), str(EVERYBODY))
        host = canonical_host(host)
        allowed: list[Acl] = []
        denied: set[tuple[int, str]] = set()
        for acl in self._of_type(resource):
            if (
                acl.principal not in names
                or acl.host not in (host, WILDCARD)
                or acl.operation not in (operation, Operation.ALL)
            ):
                continue
            if acl.permission == Permission.ALLOW:
                allowed.append(acl)
            else:
                denied.add((acl.pattern_type, acl.resource_name))
        if (Pattern.LITERAL, WILDCARD) in denied:
            return _DEFAULT_DENY
        for acl in allowed:
            text = acl.resource_name
            literal = acl.pattern_type == Pattern.LITERAL
            if not (literal and text == WILDCARD) and (
                (literal and (Pattern.LITERAL, text) in denied)
                or any((Pattern.PREFIXED, text[:length]) in denied for length in range(1, len(text) + 1))
            ):
                continue
            return Rule(True, f"MatchingAcl(acl={acl})")
        return _DEFAULT_DENY

    def _cache(self, key: tuple[int, Principal, str, str], rule: Rule) -> None:
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        self._decisions[key] = rule

    # --- the index

    def _about(self, resource: Resource, name: str) -> Iterator[Acl]:
        yield from self._literal.get((resource, name), {}).values()
        if name != WILDCARD:
            yield from self._literal.get((resource, WILDCARD), {}).values()
        prefixed = self._prefixed.get(resource)
        if prefixed:
            for length in self._lengths[resource]:
                if length <= len(name):
                    yield from prefixed.get(name[:length], {}).values()

    def _of_type(self, resource: Resource) -> Iterable[Acl]:
        return [acl for acl in self._acls.values() if acl.resource_type == resource]

    def _bucket(self, acl: Acl) -> dict[Uuid, Acl]:
        if acl.pattern_type == Pattern.PREFIXED:
            return self._prefixed.get(acl.resource_type, {}).get(acl.resource_name, {})
        return self._literal.get((acl.resource_type, acl.resource_name), {})

    def _add(self, acl_id: Uuid, acl: Acl) -> None:
        if acl.pattern_type == Pattern.PREFIXED:
            prefixes = self._prefixed.setdefault(acl.resource_type, {})
            if acl.resource_name not in prefixes:
                lengths = self._lengths.setdefault(acl.resource_type, {})
                lengths[len(acl.resource_name)] = lengths.get(len(acl.resource_name), 0) + 1
            prefixes.setdefault(acl.resource_name, {})[acl_id] = acl
        else:
            self._literal.setdefault((acl.resource_type, acl.resource_name), {})[acl_id] = acl

    def _remove(self, acl_id: Uuid, acl: Acl) -> None:
        bucket = self._bucket(acl)
        del bucket[acl_id]
        if bucket:
            return
        if acl.pattern_type == Pattern.PREFIXED:
            del self._prefixed[acl.resource_type][acl.resource_name]
            lengths = self._lengths[acl.resource_type]
            lengths[len(acl.resource_name)] -= 1
            if not lengths[len(acl.resource_name)]:
                del lengths[len(acl.resource_name)]
        else:
            del self._literal[(acl.resource_type, acl.resource_name)]


def _applies(acl: Acl, principals: tuple[str, str], host: str, operation: Operation) -> bool:
    if acl.principal not in principals or acl.host not in (host, WILDCARD):
        return False
    if acl.operation in (operation, Operation.ALL):
        return True
    return acl.permission == Permission.ALLOW and acl.operation in _IMPLIES.get(operation, ())


def canonical_host(text: str) -> str:
    """Return the one spelling of an address; map IPv4 in IPv6 to IPv4, so that it cannot be used to bypass an ACL."""
    if text == WILDCARD:
        return text
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
