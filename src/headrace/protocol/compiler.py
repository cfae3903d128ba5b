"""Codecs: one per (message class, version), compiled to source on first use and kept."""

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
    """Each direction is compiled when it is first asked for: a broker never encodes a FetchRequest."""

    def __init__(self, message: type[M], version: int) -> None:
        self.message = message
        self.version = version
        self.flexible = version in message.facts.flexible

    @cached_property
    def decode_from(self) -> Callable[[Buffer, int], tuple[M, int]]:
        """(buffer, position) to the message and the position behind it; raises DecodeError."""
        return compile_decoder(self.message, self.version)

    @cached_property
    def encode(self) -> Callable[[M], bytes]:
        """Raises EncodeError."""
        return compile_encoder(self.message, self.version, parts=False)

    @cached_property
    def encode_parts(self) -> Callable[[M], list[bytes | memoryview | Stored]]:
        """As encode, but records are not copied: they stand between the other bytes as they are."""
        if not has_records(self.message, self.version):
            encode = self.encode
            return lambda message: [encode(message)]
        return compile_encoder(self.message, self.version, parts=True)

    def decode(self, buffer: Buffer, position: int = 0) -> M:
        """Like Kafka, tolerates bytes behind the message; decode_from tells where it ended."""
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
