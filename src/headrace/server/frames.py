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
from headrace.server.response_writer import Answer


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

    __slots__ = ("abandon", "answer", "done", "holds_frame", "tell")

    def __init__(self, abandon: Callable[[], object], holds_frame: bool = False) -> None:
        self.abandon = abandon
        self.holds_frame = holds_frame
        self.done = False
        self.answer: Answer | None = None
        self.tell: Callable[[Deferred], None] | None = None

    def resolve(self, answer: Answer | None) -> None:
        """Set the response. None closes the connection: the handler failed in a way that has no error response."""
        if self.done:
            return
        self.done = True
        self.answer = answer
        if self.tell is not None:
            self.tell(self)

    async def wait(self) -> Answer | None:
        """Wait for the response to a frame that was dispatched without a connection; abandon it if cancelled."""
        if not self.done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.tell = lambda _: None if future.done() else future.set_result(None)
            try:
                await future
            except asyncio.CancelledError:
                self.abandon()
                raise
        return self.answer


class MessageHandler(Protocol):
    async def ask(self, peer: Peer, message: Any, version: int, client_id: str) -> Any:
        """Return the response message to a request message from this node itself."""


class FrameHandler(Protocol):
    def handle(self, peer: Peer, frame: memoryview) -> Answer | Deferred | None:
        """Return the parts of the response (with its size prefix), a Deferred, or None if none is sent (acks=0).

        Raise CloseConnection to close the connection.
        """
