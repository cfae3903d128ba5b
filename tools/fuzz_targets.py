"""Fuzz targets: each parses the data and suppresses only the errors that the parser documents."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from headrace.base.errors import CorruptData, HeadraceError, KafkaError
from headrace.options.table import parse_properties
from headrace.protocol.apis import APIS
from headrace.protocol.compiler import codec
from headrace.protocol.errors import DecodeError, FrameError
from headrace.protocol.framing import FrameSplitter
from headrace.protocol.headers import read_request_header
from headrace.protocol.stored import decode_framed
from headrace.records.record import decode_records
from headrace.records.validate_batch import check_produced_batch, read_produced_header
from headrace.storage.producer_snapshots import decode_snapshot

LIMIT = 1 << 20
_KEYS = sorted(APIS)


def frames(data: bytes) -> None:
    with suppress(FrameError):
        FrameSplitter(LIMIT).feed(data)


def requests(data: bytes) -> None:
    """Decode a message; the first two bytes select its type and version, so that every decoder is reachable."""
    if len(data) < 2:
        return
    api = APIS[_KEYS[data[0] % len(_KEYS)]]
    version = api.versions.low + data[1] % (api.versions.high - api.versions.low + 1)
    for message in (api.request, api.response):
        with suppress(DecodeError):
            codec(message, version).decode(data, 2)
    with suppress(DecodeError):
        read_request_header(data)


def batches(data: bytes) -> None:
    view = memoryview(data)
    with suppress(KafkaError):
        header = read_produced_header(view)
        check_produced_batch(
            view, header, max_decompressed_bytes=LIMIT, require_keys=False, timestamp_min=0, timestamp_max=2**63 - 1
        )
    with suppress(CorruptData):
        for _ in decode_records(data, limit=LIMIT, verify_crc=False):
            pass


def stored(data: bytes) -> None:
    for parse in (decode_framed, decode_snapshot):
        with suppress(DecodeError, CorruptData):
            parse(data)


def settings(data: bytes) -> None:
    with suppress(HeadraceError):
        parse_properties(data.decode(errors="replace"), "fuzz")


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": frames, "requests": requests, "batches": batches, "stored": stored, "settings": settings,
}  # fmt: skip
