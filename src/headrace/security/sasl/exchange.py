"""One authentication under way, without hands: a token of the client in; a challenge, success or failure out."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Challenge(NamedTuple):
    token: bytes


class Success(NamedTuple):
    """`token`: what the client is sent with the good news (SCRAM proves that the server knew the password, too)."""

    user: str
    token: bytes = b""


class Failure(NamedTuple):
    """`reason` is for the log of the server: a client is told only that it failed, or whoever guesses would learn from it.
    `message`: what it may know, because it is about the form and not about the credentials."""

    reason: str
    message: str | None = None


Step = Challenge | Success | Failure


class Exchange(Protocol):
    def step(self, token: bytes) -> Step:
        """Never raises, whatever the bytes are. After Success or Failure it is not called again."""
