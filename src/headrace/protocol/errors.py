"""The errors of decoding and encoding messages."""

from __future__ import annotations

from headrace.base.errors import HeadraceError


class DecodeError(HeadraceError):
    """Bytes that are not a valid message; the error text names the message and the fault."""


class EncodeError(HeadraceError):
    """A message that cannot be encoded: a value out of range, a null or field that the version does not have."""


class UnsupportedVersion(HeadraceError):
    """A version that the message does not have."""


class FrameError(HeadraceError):
    """A frame whose declared size is negative or above the limit; the connection must be closed."""
