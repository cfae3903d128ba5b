"""A broker's channel to brokers. Requests to itself go straight to its dispatcher, without being encoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headrace.base.ids import NodeId
from headrace.protocol.apis import APIS
from headrace.server.authority import OWN_NODE
from headrace.server.context import Peer
from headrace.server.frames import MessageHandler


class BrokerChannel(Protocol):
    async def request(self, node_id: int, message: Any) -> Any:
        """Return the response. Raise ConnectionError if that broker cannot be reached."""


class OwnBroker:
    """The channel of the only broker of a cluster, which can reach no other broker."""

    def __init__(self, node_id: NodeId, dispatcher: Callable[[], MessageHandler]) -> None:
        self._node_id = node_id
        self._dispatcher = dispatcher
        self._client_id = f"broker-{node_id}"
        self._peer = Peer("BROKER", "127.0.0.1", authority=OWN_NODE)

    async def request(self, node_id: int, message: Any) -> Any:
        if node_id != self._node_id:
            raise ConnectionError(f"broker {node_id} is not this node, and this version runs only one")
        version = APIS[message.facts.api_key].stable_version_max
        return await self._dispatcher().send(self._peer, message, version, self._client_id)
