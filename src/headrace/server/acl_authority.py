"""Authorization by ACLs, with an audit log in Kafka's format (logger `kafka.authorizer.logger`).

A permission that a whole request needs is checked before its handler is called. The handler checks the permissions for each topic
or group that the request names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

from headrace.base.errors import ErrorCode
from headrace.protocol.apis import ApiKey
from headrace.security.authorizer import Rule, StandardAuthorizer
from headrace.security.resources import Need, Operation, Resource
from headrace.server.context import Peer, RequestContext

audit = logging.getLogger("kafka.authorizer.logger")

Refusal = Callable[[Any, ErrorCode, str], Any]

REFUSED = "Cluster authorization failed."
_RESOURCE_NAMES = {
    Resource.TOPIC: "Topic",
    Resource.GROUP: "Group",
    Resource.CLUSTER: "Cluster",
    Resource.TRANSACTIONAL_ID: "TransactionalId",
    Resource.DELEGATION_TOKEN: "DelegationToken",
    Resource.USER: "User",
}


class AclAuthority:
    """The authority that consults the authorizer and audits its decisions."""

    unrestricted: ClassVar[bool] = False
    is_own_node: ClassVar[bool] = False

    def __init__(self, authorizer: StandardAuthorizer) -> None:
        self.authorizer = authorizer

    def allows(
        self, context: RequestContext, operation: Operation, resource: Resource, name: str, *, quietly: bool = False
    ) -> bool:
        peer = context.peer
        rule = self.authorizer.decide(peer.principal, peer.address, operation, resource, name)
        if rule.allowed:
            if audit.isEnabledFor(logging.DEBUG):
                _report(logging.DEBUG, context, operation, resource, name, rule)
        elif not quietly:
            _report(logging.INFO, context, operation, resource, name, rule)
        return rule.allowed

    def allows_any(self, context: RequestContext, operation: Operation, resource: Resource) -> bool:
        peer = context.peer
        rule = self.authorizer.decide_any(peer.principal, peer.address, operation, resource)
        if not rule.allowed:
            _report(logging.INFO, context, operation, resource, "*", rule)
        return rule.allowed

    def passes_write(self, peer: Peer, topic: str) -> bool:
        """Return whether a Produce request may take the short path: it is allowed and there is nothing to audit."""
        rule = self.authorizer.decide(peer.principal, peer.address, Operation.WRITE, Resource.TOPIC, topic)
        return rule.allowed and not audit.isEnabledFor(logging.DEBUG)

    def operations(self, context: RequestContext, resource: Resource, name: str) -> int:
        return self.authorizer.operations(context.peer.principal, context.peer.address, resource, name)


def _report(
    level: int, context: RequestContext, operation: Operation, resource: Resource, name: str, rule: Rule
) -> None:
    audit.log(
        level,
        "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s"
        " with resourceRefCount = 1 based on rule %s",
        context.peer.principal,
        "Allowed" if rule.allowed else "Denied",
        operation.name,
        context.peer.address,
        _RESOURCE_NAMES[resource],
        name,
        "".join(word.title() for word in ApiKey(context.api_key).name.split("_")),
        rule.text,
    )


def need_of_whole(need: Need) -> Need | None:
    """Return the permission to check before the handler is called; None if there is none or the handler checks it."""
    return None if need.per_entity or need.resource is Resource.NONE else need


def refusal_for(response: Any) -> Refusal:
    """Return the function that builds an error response, for responses with a top-level error code.

    The Service of any other response brings its own (`Service.refuse`).
    """
    fields = response.__struct_fields__
    assert "error_code" in fields, f"{response.__name__} has no error code of its own: its Service needs `refuse`"
    if "error_message" in fields:
        return lambda request, code, text: response(error_code=code, error_message=text)
    return lambda request, code, text: response(error_code=code)
