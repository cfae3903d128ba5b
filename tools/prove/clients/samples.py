"""Sample records with every shape of key, value, header and timestamp, and their comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Headers = tuple[tuple[str, bytes | None], ...]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FIRST_MS = 1_700_000_000_000
STEP_MS = 1_000


class Sample(NamedTuple):
    """One record to write. The timestamp is None for clients that cannot set it."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None


class Seen(NamedTuple):
    """One record as a reader received it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True)
class WriteOptions:
    codec: str = "none"
    acks: str = "all"  # "0", "1" or "all"
    idempotent: bool = True


class Client(Protocol):
    name: str

    def missing(self, codec: str) -> str | None:
        """Return why the client cannot be used with this codec, or None if it can."""

    def samples(self) -> Sequence[Sample]:
        """Return the samples that this client can write."""

    def write(self, bootstrap: str, topic: str, samples: Sequence[Sample], options: WriteOptions) -> None:
        """Write to partition 0 in order; return when all records are acknowledged (or sent, with acks=0)."""

    def read(self, bootstrap: str, topic: str, offset: int, count: int) -> list[Seen]:
        """Return `count` records of partition 0 from `offset` on."""

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int:
        """Return the first offset of partition 0 with this timestamp or a later one, or -1."""


def full_samples(*, bare: bool = True) -> list[Sample]:
    """Return every shape of record, for clients with an API.

    Records with neither key nor value are included only if `bare`, because some clients refuse them. The last but one
    is out of order in time.
    """
    without: list[tuple[bytes | None, bytes | None, Headers]] = [(None, None, ())] if bare else []
    shapes: list[tuple[bytes | None, bytes | None, Headers]] = [
        (b"key", b"value", ()),
        (None, b"no key", ()),
        (b"", b"", ()),
        (b"tombstone", None, ()),
        *without,
        (b"headers", b"two of a name", (("name", b"first"), ("name", b"second"), ("empty", b""), ("null", None))),
        (bytes(range(256)), bytes(reversed(range(256))), (("bytes", bytes(range(128, 256))),)),
        ("Schlüssel".encode(), "値 und \N{MUSICAL SYMBOL G CLEF}".encode(), (("Größe", "ß".encode()),)),
        (b"large", b"0123456789abcdef" * 4096, ()),
    ]
    times = [FIRST_MS + STEP_MS * index for index in range(len(shapes))]
    times[-2] = FIRST_MS - STEP_MS
    return [Sample(key, value, headers, time) for (key, value, headers), time in zip(shapes, times, strict=True)]


def differences(wanted: Sequence[Sample], seen: Sequence[Seen], reader: str) -> list[str]:
    """Return one line for each record that differs from what was written."""
    found = []
    if len(seen) != len(wanted):
        found.append(f"{reader} got {len(seen)} records instead of {len(wanted)}")
    for sample, record in zip(wanted, seen, strict=False):
        same = (sample.key, sample.value, sample.headers) == (record.key, record.value, record.headers)
        if not same or sample.timestamp not in (None, record.timestamp):
            found.append(f"{reader} got {_short(record)} for {_short(sample)}")
    return found


def _short(record: object) -> str:
    text = repr(record)
    return text if len(text) < 300 else f"{text[:300]}…"
