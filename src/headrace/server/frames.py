"""What passes between a connection and whoever handles its requests: a frame in; an answer, one to come, or the end of the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from headrace.base.errors import HeadraceError
from headrace.server.context import Peer
from headrace.server.outlet import Answer


class CloseConnection(HeadraceError):
    """This connection cannot go on; the text says why."""


class Deferred:
    """An answer that comes later. `resolve` may be called once, from the event loop; `abandon`: nobody waits any more."""

    __slots__ = ("abandon", "answer", "done", "holds_frame", "tell")

    def __init__(self, abandon: Callable[[], object], holds_frame: bool = False) -> None:
        self.abandon = abandon
        self.holds_frame = holds_frame
        self.done = False
        self.answer: Answer | None = None
        self.tell: Callable[[Deferred], None] | None = None

    def resolve(self, answer: Answer | None) -> None:
        """None closes the connection: the handler failed in a way that has no answer."""
        if self.done:
            return
        self.done = True
        self.answer = answer
        if self.tell is not None:
            self.tell(self)

    async def wait(self) -> Answer | None:
        """For whoever dispatches a frame without a connection; cancelling the wait abandons the request."""
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
        """The answer to a message that comes from this very node, as a message."""


class FrameHandler(Protocol):
    def handle(self, peer: Peer, frame: memoryview) -> Answer | Deferred | None:
        """The answer's parts (size included), an answer to come, or None where none is sent (acks=0). CloseConnection ends it."""
