"""Who asks, over which door, and what they may do: what a handler may know besides the request itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.security.principals import ANONYMOUS, Principal
from headrace.security.resources import CLUSTER_NAME, Operation, Resource
from headrace.server.authority import DENY_ALL, Authority

if TYPE_CHECKING:
    from headrace.server.authentication import Authentication


class Peer:
    """The other end of one connection, for as long as it lasts. Unless it is given an authority, it may do nothing."""

    __slots__ = (
        "address",
        "authentication",
        "authority",
        "client_software",
        "listener",
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
        self.port = port  # of the listener, as bound
        self.source_port = source_port  # of the other end
        self.principal = principal
        self.authority = authority
        self.authentication: Authentication | None = None  # where SASL is spoken
        self.client_software = ""


class RequestContext:
    """One request. Made for each, so it is small and has no defaults to fill in."""

    __slots__ = ("api_key", "api_version", "client_id", "peer")

    def __init__(self, peer: Peer, api_key: int, api_version: int, client_id: str | None) -> None:
        self.peer = peer
        self.api_key = api_key
        self.api_version = api_version
        self.client_id = client_id

    def may(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME, *, quietly: bool = False) -> bool:
        """`quietly`: the asker did not ask for this very thing, so a no is nothing to report."""
        return self.peer.authority.allows(self, operation, resource, name, quietly=quietly)

    def may_any(self, operation: Operation, resource: Resource) -> bool:
        """To at least one resource of this type, whichever."""
        return self.peer.authority.allows_any(self, operation, resource)

    def permitted(
        self, operation: Operation, resource: Resource, names: Iterable[str], *, quietly: bool = False
    ) -> set[str]:
        """Those of the names to which it may be done."""
        authority = self.peer.authority
        if authority.unrestricted:
            return set(names)
        return {name for name in names if authority.allows(self, operation, resource, name, quietly=quietly)}

    def operations(self, resource: Resource, name: str = CLUSTER_NAME) -> int:
        """Kafka's bit field of all that may be done to one resource."""
        return self.peer.authority.operations(self, resource, name)
