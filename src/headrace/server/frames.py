"""The interface between a connection and its request handler: frames, deferred responses and closing the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, cast

from headrace.base.errors import HeadraceError
from headrace.protocol.apis import RESPONSES
from headrace.protocol.compiler import codec
from headrace.protocol.headers import read_response_header
from headrace.server.context import Peer
from headrace.server.response_writer import ResponseParts


class CloseConnection(HeadraceError):
    """Raised to close the connection; the text is the reason."""


Message = TypeVar("Message")


class ReceivedRequest(Generic[Message]):
    """A decoded request with the frame that it was received in, for handlers that forward it."""

    __slots__ = ("frame", "message")

    def __init__(self, message: Message, frame: bytes) -> None:
        self.message = message
        self.frame = frame  # without its size


class EncodedResponse(Generic[Message]):
    """A response that another node has encoded for the same request header, so that it is sent on unchanged."""

    __slots__ = ("_api_key", "_version", "frame")

    def __init__(self, api_key: int, version: int, frame: bytes) -> None:
        self._api_key = api_key
        self._version = version
        self.frame = frame  # without its size

    def decode(self) -> Message:
        _, position = read_response_header(self._api_key, self._version, self.frame)
        return cast("Message", codec(RESPONSES[self._api_key], self._version).decode(self.frame, position))


class Deferred:
    """A response that is sent later.

    `resolve` is called on the event loop, and only the first call counts. `abandon` is called when the response is no longer needed.
    """

    __slots__ = ("abandon", "done", "holds_frame", "on_resolved", "response")

    def __init__(self, abandon: Callable[[], object], holds_frame: bool = False) -> None:
        self.abandon = abandon
        self.holds_frame = holds_frame
        self.done = False
        self.response: ResponseParts | None = None
        self.on_resolved: Callable[[Deferred], None] | None = None

    def resolve(self, response: ResponseParts | None) -> None:
        """Set the response. None closes the connection: the handler failed in a way that has no error response."""
        if self.done:
            return
        self.done = True
        self.response = response
        if self.on_resolved is not None:
            self.on_resolved(self)

    async def wait(self) -> ResponseParts | None:
        """Wait for the response to a frame that was dispatched without a connection; abandon it if cancelled."""
        if not self.done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.on_resolved = lambda _: None if future.done() else future.set_result(None)
            try:
                await future
            except asyncio.CancelledError:
                self.abandon()
                raise
        return self.response


class MessageHandler(Protocol):
    async def send(self, peer: Peer, message: Any, version: int, client_id: str) -> Any:
        """Return the response message to a request message from this node itself."""


class FrameHandler(Protocol):
    def handle(self, peer: Peer, frame: memoryview) -> ResponseParts | Deferred | None:
        """Return the parts of the response (with its size prefix), a Deferred, or None if none is sent (acks=0).

        Raise CloseConnection to close the connection.
        """
