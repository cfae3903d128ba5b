"""Authorities decide what a peer may do. Every peer has one; the default allows nothing.

`AllowAll` is the authority of a node without an authorizer, `OwnNode` that of the channels on which a node sends requests to itself.
With an authorizer, `server.acl_authority.AclAuthority` consults it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

from headrace.security.resources import ALL_OPERATIONS, Operation, Resource, bit_field

if TYPE_CHECKING:
    from headrace.server.context import Peer, RequestContext


class Authority(Protocol):
    unrestricted: ClassVar[bool]  # everything is allowed, so hot paths skip the check
    is_own_node: ClassVar[bool]  # the peer is this node itself, inside the process

    def allows(
        self, context: RequestContext, operation: Operation, resource: Resource, name: str, *, quietly: bool = False
    ) -> bool:
        """Return whether the operation is allowed; with `quietly` a refusal is not audited."""

    def allows_any(self, context: RequestContext, operation: Operation, resource: Resource) -> bool:
        """Return whether the operation is allowed on at least one resource of the type."""

    def passes_write(self, peer: Peer, topic: str) -> bool:
        """Return whether a Produce request may take the short path: it is allowed and there is nothing to audit."""

    def operations(self, context: RequestContext, resource: Resource, name: str) -> int:
        """Return Kafka's bit field of all operations that are allowed on one resource."""


class _Fixed(ABC):
    """Base of authorities whose decisions depend only on the resource type and the operation."""

    unrestricted: ClassVar[bool] = False
    is_own_node: ClassVar[bool] = False

    @abstractmethod
    def _permits(self, operation: Operation, resource: Resource) -> bool: ...

    def allows(
        self, context: RequestContext, operation: Operation, resource: Resource, name: str, *, quietly: bool = False
    ) -> bool:
        return self._permits(operation, resource)

    def allows_any(self, context: RequestContext, operation: Operation, resource: Resource) -> bool:
        return self._permits(operation, resource)

    def passes_write(self, peer: Peer, topic: str) -> bool:
        return self._permits(Operation.WRITE, Resource.TOPIC)

    def operations(self, context: RequestContext, resource: Resource, name: str) -> int:
        return 0


class DenyAll(_Fixed):
    def _permits(self, operation: Operation, resource: Resource) -> bool:
        return False


class AllowAll(_Fixed):
    unrestricted: ClassVar[bool] = True

    def _permits(self, operation: Operation, resource: Resource) -> bool:
        return True

    def operations(self, context: RequestContext, resource: Resource, name: str) -> int:
        return ALL_OPERATIONS[resource]


class OwnNode(_Fixed):
    """Allows what a broker does on its own behalf: requests between brokers and controllers, creating internal topics.

    It does not depend on ACLs: no rule can lock a node out of itself, and a rule for a client never applies to it.
    """

    is_own_node: ClassVar[bool] = True
    _ON_CLUSTER = (Operation.CLUSTER_ACTION, Operation.CREATE)

    def _permits(self, operation: Operation, resource: Resource) -> bool:
        return resource is Resource.CLUSTER and operation in self._ON_CLUSTER

    def operations(self, context: RequestContext, resource: Resource, name: str) -> int:
        return bit_field(self._ON_CLUSTER) if resource is Resource.CLUSTER else 0


DENY_ALL = DenyAll()
ALLOW_ALL = AllowAll()
OWN_NODE = OwnNode()
