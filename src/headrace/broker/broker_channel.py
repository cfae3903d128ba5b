"""How a broker reaches brokers: always in encoded frames; itself straight into its dispatcher."""

from __future__ import annotations

from typing import Any, Protocol

from headrace.base.ids import NodeId
from headrace.broker.controller_channel import LocalChannel


class BrokerChannel(Protocol):
    async def request(self, node_id: int, message: Any) -> Any:
        """The decoded answer; ConnectionError if that broker cannot be reached."""


class OwnBroker:
    """Where there is one broker only."""

    def __init__(self, node_id: NodeId, channel: LocalChannel) -> None:
        self._node_id = node_id
        self._channel = channel

    async def request(self, node_id: int, message: Any) -> Any:
        if node_id != self._node_id:
            raise ConnectionError(f"broker {node_id} is not this one, and this version runs one node")
        return await self._channel.request(message)
