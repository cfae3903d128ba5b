"""The context of a request: the peer, its listener and its permissions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.security.principals import ANONYMOUS, Principal
from headrace.security.resources import CLUSTER_NAME, Operation, Resource
from headrace.server.authority import DENY_ALL, Authority

if TYPE_CHECKING:
    from headrace.server.authentication import Authentication


class Peer:
    """The other end of one connection. Without an authority it may do nothing."""

    __slots__ = (
        "address",
        "authentication",
        "authority",
        "client_software",
        "listener",
        "on_lost",
        "port",
        "principal",
        "source_port",
    )

    def __init__(
        self,
        listener: str,
        address: str,
        port: int = 0,
        principal: Principal = ANONYMOUS,
        authority: Authority = DENY_ALL,
        source_port: int = 0,
    ) -> None:
        self.listener = listener
        self.address = address
        self.port = port  # port that the listener is bound to
        self.source_port = source_port  # port of the other end
        self.principal = principal
        self.authority = authority
        self.authentication: Authentication | None = None  # set on SASL listeners
        self.client_software = ""
        self.on_lost: Callable[[], None] | None = None  # called once, when the connection is lost or closed


class RequestContext:
    """The context of one request. One is made for each request, so it is small and has no defaults to fill in."""

    __slots__ = ("api_key", "api_version", "client_id", "peer")

    def __init__(self, peer: Peer, api_key: int, api_version: int, client_id: str | None) -> None:
        self.peer = peer
        self.api_key = api_key
        self.api_version = api_version
        self.client_id = client_id

    def may(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME, *, quietly: bool = False) -> bool:
        """Return whether the peer may perform the operation.

        With `quietly` a refusal is not audited, because the client did not request this resource in particular.
        """
        return self.peer.authority.allows(self, operation, resource, name, quietly=quietly)

    def may_any(self, operation: Operation, resource: Resource) -> bool:
        """Return whether the operation is allowed on at least one resource of the type."""
        return self.peer.authority.allows_any(self, operation, resource)

    def permitted(
        self, operation: Operation, resource: Resource, names: Iterable[str], *, quietly: bool = False
    ) -> set[str]:
        """Return the names on which the operation is allowed."""
        authority = self.peer.authority
        if authority.unrestricted:
            return set(names)
        return {name for name in names if authority.allows(self, operation, resource, name, quietly=quietly)}

    def operations(self, resource: Resource, name: str = CLUSTER_NAME) -> int:
        """Return Kafka's bit field of all operations that are allowed on one resource."""
        return self.peer.authority.operations(self, resource, name)
