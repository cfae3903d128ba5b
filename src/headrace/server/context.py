"""Who asks, and over which door: what a handler may know besides the request itself."""

from __future__ import annotations

from headrace.security.principals import ANONYMOUS, Principal


class Peer:
    """The other end of one connection, for as long as it lasts."""

    __slots__ = ("address", "client_software", "listener", "port", "principal")

    def __init__(self, listener: str, address: str, port: int = 0, principal: Principal = ANONYMOUS) -> None:
        self.listener = listener
        self.address = address
        self.port = port  # of the listener, as bound
        self.principal = principal
        self.client_software = ""


class RequestContext:
    """One request. Made for each, so it is small and has no defaults to fill in."""

    __slots__ = ("api_version", "client_id", "peer")

    def __init__(self, peer: Peer, api_version: int, client_id: str | None) -> None:
        self.peer = peer
        self.api_version = api_version
        self.client_id = client_id
