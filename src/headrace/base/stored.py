"""Bytes in a file that connections can send without copying them through Python; storage provides them."""

from __future__ import annotations

from typing import Protocol


class Stored(Protocol):
    def __len__(self) -> int: ...

    def send_to(self, descriptor: int) -> int:
        """Send as many bytes as the socket accepts at once and return their number.

        Raise BlockingIOError if it accepts none; return 0 if the file has become shorter.
        """

    def front(self, size: int) -> bytes:
        """Return the first bytes, at least one and at most `size`. Raise OSError if they are no longer there."""

    def after(self, size: int) -> Stored:
        """Return the bytes after the first `size`."""
