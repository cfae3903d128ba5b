"""Codecs, one per (message class, version), generated and compiled on first use and cached."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, TypeVar

from headrace.base.stored import Stored
from headrace.protocol.declare import Struct
from headrace.protocol.decoding import compile_decoder, has_records
from headrace.protocol.encoding import compile_encoder
from headrace.protocol.errors import UnsupportedVersion
from headrace.protocol.types import Buffer

M = TypeVar("M", bound=Struct)


class Codec(Generic[M]):
    """The decoder and encoder of one message version, compiled separately on first use, as nodes rarely need both."""

    def __init__(self, message: type[M], version: int) -> None:
        self.message = message
        self.version = version
        self.flexible = version in message.facts.flexible

    @cached_property
    def decode_from(self) -> Callable[[Buffer, int], tuple[M, int]]:
        """Decode (buffer, position) to the message and the position after it. Raise DecodeError if it is malformed."""
        return compile_decoder(self.message, self.version)

    @cached_property
    def encode(self) -> Callable[[M], bytes]:
        """Encode a message to bytes. Raise EncodeError if this version cannot represent it."""
        return compile_encoder(self.message, self.version, parts=False)

    @cached_property
    def encode_parts(self) -> Callable[[M], list[bytes | memoryview | Stored]]:
        """Encode a message to a list of parts, in which records are not copied but are parts themselves."""
        if not has_records(self.message, self.version):
            encode = self.encode
            return lambda message: [encode(message)]
        return compile_encoder(self.message, self.version, parts=True)

    def decode(self, buffer: Buffer, position: int = 0) -> M:
        """Decode a message; like Kafka, ignore bytes after it (`decode_from` returns its end)."""
        return self.decode_from(buffer, position)[0]


_codecs: dict[tuple[type[Struct], int], Codec[Any]] = {}


def codec(message: type[M], version: int) -> Codec[M]:
    try:
        return _codecs[message, version]
    except KeyError:
        if version not in message.facts.versions:
            raise UnsupportedVersion(
                f"{message.__name__} has versions {message.facts.versions}, not {version}"
            ) from None
        made = _codecs[message, version] = Codec(message, version)
        return made
