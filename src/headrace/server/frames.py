"""The interface between a connection and its request handler: frames, deferred responses and closing the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from headrace.base.errors import HeadraceError
from headrace.server.context import Peer
from headrace.server.response_writer import Answer


class CloseConnection(HeadraceError):
    """Raised to close the connection; the text is the reason."""


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
