"""Bytes that lie in a file and may go to a socket without passing through us: what storage gives and connections send."""

from __future__ import annotations

from typing import Protocol


class Stored(Protocol):
    def __len__(self) -> int: ...

    def send_to(self, descriptor: int) -> int:
        """As much as the socket takes at once; BlockingIOError if that is nothing, 0 if the file has become shorter."""

    def front(self, size: int) -> bytes:
        """At most `size` bytes, at least one; OSError if they are no longer there."""

    def behind(self, size: int) -> Stored:
        """What follows the first `size` bytes."""
