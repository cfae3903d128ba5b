"""A broker's channel to the active controller: in the same process if that one leads, otherwise over the network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from headrace.base.errors import KafkaError
from headrace.base.ids import NO_NODE, NodeId
from headrace.broker.channels.controller_discovery import ControllerDiscovery, hint_of, refusal_of
from headrace.client.retry import Backoff, Retry, RetryPolicy
from headrace.client.wire.connection import Disconnected, NoResponse, NotConnected
from headrace.client.wire.frames import decode_response, encode_request
from headrace.client.wire.node_link import Address, NodeLink
from headrace.protocol.apis import APIS
from headrace.protocol.messages.envelope import EnvelopeRequest
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from headrace.server.authority import OWN_NODE
from headrace.server.context import Peer
from headrace.server.frames import Deferred, FrameHandler
from headrace.server.response_writer import joined

log = logging.getLogger(__name__)

REQUEST_S_MAX = 30.0  # how long one request is repeated, until a controller carries it out
ATTEMPT_S_MAX = (
    3.0  # how long one controller may take; well below the session timeout, so that a heartbeat reaches another in time
)
_BACKOFF = Backoff(first_s=0.02, max_s=0.5)
_LONG_POLLS = (FetchRequest, FetchSnapshotRequest)


class ControllerChannel(Protocol):
    async def request(self, message: Any) -> Any:
        """Return the decoded response of the active controller.

        Raise Disconnected or NoResponse, or ConnectionError in the same process, if there is none.
        """


class OwnController(Protocol):
    """The controller in the same process as a broker."""

    @property
    def dispatcher(self) -> FrameHandler: ...

    @property
    def leader(self) -> NodeId:
        """Return the leader of the quorum as far as this controller knows, NO_NODE if there is none."""

    @property
    def is_alone(self) -> bool:
        """Return whether this controller is the only voter of the quorum."""

    def address_of(self, node: NodeId) -> Address | None:
        """Return where another controller is reached, None if that is unknown."""


class LocalChannel:
    """A channel to a controller in the same process: the usual frames without a socket, sent by the node as itself."""

    def __init__(self, dispatcher: Callable[[], FrameHandler], client_id: str) -> None:
        self._dispatcher = dispatcher
        self._client_id = client_id
        self._peer = Peer("CONTROLLER", "127.0.0.1", authority=OWN_NODE)
        self._next_correlation = 0

    async def request(self, message: Any) -> Any:
        version = APIS[message.facts.api_key].stable_version_max
        self._next_correlation = (self._next_correlation + 1) & 0x7FFFFFFF
        correlation_id = self._next_correlation
        frame = memoryview(b"".join(encode_request(message, version, correlation_id, self._client_id)))[4:]
        response = self._dispatcher().handle(self._peer, frame)
        if isinstance(response, Deferred):
            response = await response.wait()
        if response is None:
            raise ConnectionError("the controller sent no response; see the log for the reason")
        return decode_response(message.facts.api_key, version, correlation_id, memoryview(joined(response))[4:])


class _NotCarriedOut(Exception):
    """An attempt failed, and the request may be sent again."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class QuorumChannel:
    """A channel to whichever controller leads the quorum.

    `own` is the controller of the same process, if there is one, and `open_link` makes a link to another. Requests are repeated until
    a controller carries them out or `timeout_s` is over. All requests of brokers may be carried out twice, except an Envelope: it is
    repeated only if it certainly was not carried out, because no connection was made or the controller does not lead.
    """

    def __init__(
        self,
        node_id: NodeId,
        own: OwnController | None,
        discovery: ControllerDiscovery,
        open_link: Callable[[Address], NodeLink],
        random: Random,
        timeout_s: float = REQUEST_S_MAX,
    ) -> None:
        self._node_id = node_id
        self._random = random
        self._own = own
        self._discovery = discovery
        self._open_link = open_link
        self._timeout_s = timeout_s
        self._local = None if own is None else LocalChannel(lambda: own.dispatcher, f"broker-{node_id}")
        # Responses of a connection arrive in order, so long polls have connections of their own.
        self._links: dict[tuple[Address, bool], NodeLink] = {}
        self._last_used: Address | None = None

    async def request(self, message: Any) -> Any:
        if self._local is not None and self._own is not None and self._own.is_alone:
            return await self._local.request(message)
        # In a task of its own: a caller that was started with `base.eager` may have none, but timeouts need one.
        return await asyncio.get_running_loop().create_task(self._request_until_carried_out(message))

    async def _request_until_carried_out(self, message: Any) -> Any:
        retry = Retry(RetryPolicy(_BACKOFF), self._timeout_s, random=self._random)
        while True:
            try:
                if self._own is not None and self._own.leader == self._node_id:
                    return await self._request_local(message)
                return await self._request_remote(message, retry.left_s)
            except _NotCarriedOut as failure:
                await asyncio.sleep(retry.next_pause_s(failure.reason))

    async def _request_local(self, message: Any) -> Any:
        assert self._local is not None
        response = await self._local.request(message)
        code = refusal_of(response)
        if code is not None:
            raise _NotCarriedOut(KafkaError(code, "the controller of this node has just lost the leadership"))
        return response

    async def _request_remote(self, message: Any, left_s: float) -> Any:
        """Return the response of the leader. Raise _NotCarriedOut if another attempt may follow."""
        discovery = self._discovery
        if self._own is not None and self._own.leader != NO_NODE:
            discovery.prefer(self._own.leader, self._own.address_of(self._own.leader))
        if not discovery.knows_others:
            raise NotConnected(
                "no controller is known: set controller.quorum.voters or controller.quorum.bootstrap.servers"
            )
        address = discovery.target()
        try:
            response = await self._attempt(address, message, left_s)
        except (Disconnected, NoResponse) as error:
            discovery.failed(address)
            if isinstance(error, NotConnected) or not isinstance(message, EnvelopeRequest):
                raise _NotCarriedOut(error) from error
            raise
        code = refusal_of(response)
        if code is not None:
            discovery.failed(address)
            hint = hint_of(response)
            if hint is not None:
                discovery.learn(hint)
            raise _NotCarriedOut(KafkaError(code, f"{address} does not lead the metadata quorum"))
        discovery.succeeded(address)
        if address != self._last_used:
            self._last_used = address
            log.info("the requests of this broker now go to the controller at %s", address)
        return response

    async def _attempt(self, address: Address, message: Any, left_s: float) -> Any:
        timeout_s = left_s if isinstance(message, EnvelopeRequest) else min(left_s, ATTEMPT_S_MAX)
        link = self._link(address, isinstance(message, _LONG_POLLS))
        try:
            async with asyncio.timeout(timeout_s):  # the link's own limit does not include connecting
                return await link.request(message, timeout_s=timeout_s)
        except TimeoutError as error:
            await self._drop_links(address)  # it may never respond on these connections
            raise NoResponse(f"the controller at {address} did not respond within {timeout_s:.1f} s") from error

    def _link(self, address: Address, is_long_poll: bool) -> NodeLink:
        key = (address, is_long_poll)
        if key not in self._links:
            self._links[key] = self._open_link(address)
        return self._links[key]

    async def _drop_links(self, address: Address) -> None:
        for key in [key for key in self._links if key[0] == address]:
            await self._links.pop(key).close()

    async def close(self) -> None:
        """Close all links; requests under way fail."""
        for address in dict.fromkeys(address for address, _ in self._links):  # in a fixed order, unlike a set
            await self._drop_links(address)

    def abort(self) -> None:
        """Close all links at once, as if the process had died."""
        for link in self._links.values():
            link.abort()
        self._links.clear()
