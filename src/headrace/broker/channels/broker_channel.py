"""A broker's channel to brokers: links to the others; requests to itself go straight to its dispatcher, without being encoded.

A link answers in the order of its requests, so a request that waits, such as a fetch, would hold up those behind it. Such requests
use a lane of their own: a connection beside the shared one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from headrace.base.errors import ConfigError, KafkaError
from headrace.base.ids import NodeId
from headrace.base.promise import Promise
from headrace.client.wire.connection import Disconnected, NoResponse
from headrace.client.wire.node_link import Address, LinkOptions, NodeLink
from headrace.metadata.image import Image
from headrace.metadata.loader import Changes
from headrace.protocol.apis import APIS
from headrace.server.authority import OWN_NODE
from headrace.server.context import Peer
from headrace.server.frames import MessageHandler

SHARED_LANE = ""
# Errors of `request` without a response. KafkaError means that the broker has refused the login.
UNREACHABLE = (Disconnected, NoResponse, KafkaError)


class BrokerChannel(Protocol):
    async def request(self, node_id: int, message: Any, *, lane: str = SHARED_LANE) -> Any:
        """Return the response. Raise one of UNREACHABLE if there is none: the request may have been carried out."""


class ExchangeChannel(BrokerChannel, Protocol):
    """A channel whose responses are handled in the call that receives them."""

    def exchange(self, node_id: int, message: Any, *, lane: str) -> Promise[Any] | None:
        """Send the request and return a promise for the response; None, with nothing sent, if that takes more than a call."""


class BrokerLinks:
    """The links of one broker to all others. They follow the addresses in the metadata and go away with the brokers."""

    def __init__(
        self,
        node_id: NodeId,
        dispatcher: Callable[[], MessageHandler],
        image: Callable[[], Image],
        listener: Callable[[], str],
        options: Callable[[], LinkOptions],
        random: Random,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Use `listener` and `options` when another broker is first contacted: a single broker need not configure them."""
        self._node_id = node_id
        self._dispatcher = dispatcher
        self._image = image
        self._listener = listener
        self._options = options
        self._random = random
        self._loop = loop
        self._client_id = f"broker-{node_id}"
        self._peer = Peer("BROKER", "127.0.0.1", authority=OWN_NODE)
        self._links: dict[tuple[int, str], NodeLink] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def request(self, node_id: int, message: Any, *, lane: str = SHARED_LANE) -> Any:
        if node_id == self._node_id:
            version = APIS[message.facts.api_key].stable_version_max
            return await self._dispatcher().send(self._peer, message, version, self._client_id)
        return await self._link(node_id, lane).request(message)

    def exchange(self, node_id: int, message: Any, *, lane: str) -> Promise[Any] | None:
        # The link has the broker's current address: `publish` closes it when the broker registers again.
        link = self._links.get((node_id, lane))
        return None if link is None else link.exchange(message)

    def _link(self, node_id: int, lane: str) -> NodeLink:
        if self._closed:
            raise Disconnected("this broker is stopping")
        address = self._address(node_id)
        link = self._links.get((node_id, lane))
        if link is not None and link.address != address:
            self._close(node_id)
            link = None
        if link is None:
            try:
                link = self._links[node_id, lane] = NodeLink(address, self._options(), self._random)
            except ConfigError as error:
                raise Disconnected(f"this node cannot connect to other brokers: {error}") from error
        return link

    def _address(self, node_id: int) -> Address:
        broker = self._image().brokers.get(node_id)
        try:
            endpoint = None if broker is None else broker.endpoint(self._listener())
        except ConfigError as error:
            raise Disconnected(f"this node cannot connect to other brokers: {error}") from error
        if endpoint is None:
            raise Disconnected(f"broker {node_id} is not registered, or not with the listener of brokers")
        return Address(endpoint.host, endpoint.port)

    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        """Close the links to brokers that were unregistered or have registered again, perhaps elsewhere."""
        for node_id in changes.brokers:
            was, now = old.brokers.get(node_id), new.brokers.get(node_id)
            if was is not None and (now is None or now.incarnation_id != was.incarnation_id):
                self._close(node_id)

    def _close(self, node_id: int) -> None:
        for key in [key for key in self._links if key[0] == node_id]:
            task = self._loop.create_task(self._links.pop(key).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def cancel(self) -> None:
        """Close all links without waiting; requests under way fail."""
        self._closed = True
        for node_id in {node_id for node_id, _ in self._links}:
            self._close(node_id)

    async def close(self) -> None:
        self.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
