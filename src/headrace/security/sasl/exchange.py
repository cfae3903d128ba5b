"""The server side of a SASL authentication, without I/O: client tokens in; challenge, success or failure out."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Challenge(NamedTuple):
    token: bytes


class Success(NamedTuple):
    """`token` is sent to the client with the success (in SCRAM it proves that the server knows the user)."""

    user: str
    token: bytes = b""


class Failure(NamedTuple):
    """`reason` is for the server's log only, because it would help an attacker who guesses credentials.

    `message` may be sent to the client, because it is about the form of the token and not about the credentials.
    """

    reason: str
    message: str | None = None


Step = Challenge | Success | Failure


class Exchange(Protocol):
    def step(self, token: bytes) -> Step:
        """Process a token from the client. Never raises, and is not called again after Success or Failure."""
