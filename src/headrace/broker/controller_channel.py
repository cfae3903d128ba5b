"""A broker's channel to the controller: encoded frames, over a connection or to a dispatcher in the same process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.apis import APIS
from headrace.server.authority import OWN_NODE
from headrace.server.context import Peer
from headrace.server.frames import Deferred, FrameHandler
from headrace.server.response_writer import joined


class ControllerChannel(Protocol):
    async def request(self, message: Any) -> Any:
        """Return the decoded response. Raise Disconnected, or ConnectionError in the same process, if there is none."""


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
