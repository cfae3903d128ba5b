"""What can go wrong between bytes and messages."""

from __future__ import annotations

from headrace.base.errors import HeadraceError


class DecodeError(HeadraceError):
    """Bytes that are not the message they claim to be; the text names the message and the fault."""


class EncodeError(HeadraceError):
    """A message that its version cannot carry: a value out of range, a null too many, a field of another version."""


class UnsupportedVersion(HeadraceError):
    """A version outside the valid versions of its message."""


class FrameError(HeadraceError):
    """A frame whose announced size is negative or above the limit; the connection cannot go on."""
