"""Kafka's console producer and consumer (Java client), which write text lines and cannot set timestamps."""

from __future__ import annotations

import re
from collections.abc import Sequence

from testkit import kafka_peer as peers

from tools.prove.clients.samples import Headers, Sample, Seen, WriteOptions

NULL = "<null>"
FIELD = "|~field~|"
LINE = "|~line~|\n"
HEADERS: Headers = (("from", b"java"), ("name", b"first"), ("name", b"second"))
QUIET_MS_MAX = 20_000
_TIME = re.compile(rb"(?:CreateTime|LogAppendTime):(-?\d+)")


class JavaClient:
    name = "java"

    def missing(self, codec: str) -> str | None:
        return peers.available()

    def samples(self) -> Sequence[Sample]:
        return [
            Sample(b"key", b"value", HEADERS),
            Sample(b"", b"", HEADERS),
            Sample(None, b"no key", HEADERS),
            Sample(b"tombstone", None, HEADERS),
            Sample(None, None, ()),
            Sample("Schlüssel".encode(), "値".encode(), (("Größe", "ß".encode()),)),
            Sample(b"large", b"0123456789abcdef" * 512, HEADERS),
        ]

    def write(self, bootstrap: str, topic: str, samples: Sequence[Sample], options: WriteOptions) -> None:
        lines = "".join(f"{_text_of(sample)}\n" for sample in samples)
        properties = {
            "parse.key": "true",
            "parse.headers": "true",
            "key.separator": FIELD,
            "headers.delimiter": FIELD,
            "null.marker": NULL,
        }
        done = peers.tool(
            "console-producer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", options.codec),
            *("--request-required-acks", options.acks),
            *("--command-property", f"enable.idempotence={str(options.idempotent).lower()}"),
            *(part for name, value in properties.items() for part in ("--reader-property", f"{name}={value}")),
            input=lines.encode(),
        )
        errors = done.stderr.decode(errors="replace")
        if done.returncode != 0 or "ERROR" in errors:
            raise AssertionError(f"Java's console producer failed: {errors}")

    def read(self, bootstrap: str, topic: str, offset: int, count: int) -> list[Seen]:
        properties = {
            "print.timestamp": "true",
            "print.offset": "true",
            "print.headers": "true",
            "print.key": "true",
            "key.separator": FIELD,
            "line.separator": LINE,
            "headers.separator": ",",
            "null.literal": NULL,
        }
        done = peers.tool(
            "console-consumer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", str(offset)),
            *("--max-messages", str(count), "--timeout-ms", str(QUIET_MS_MAX)),
            *(part for name, value in properties.items() for part in ("--formatter-property", f"{name}={value}")),
        )
        if done.returncode != 0 or b"ERROR" in done.stderr:
            raise AssertionError(f"Java's console consumer failed: {done.stderr.decode(errors='replace')}")
        return [_seen(line) for line in done.stdout.split(LINE.encode()) if line]

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int:
        done = peers.tool(
            "get-offsets", "--bootstrap-server", bootstrap, "--topic-partitions", f"{topic}:0", "--time", str(timestamp)
        )
        text = done.stdout.decode().strip().rpartition(":")[2]
        if done.returncode != 0:
            raise AssertionError(f"Java's get-offsets failed: {done.stderr.decode(errors='replace')}")
        return int(text) if text else -1


def _text_of(sample: Sample) -> str:
    headers = ",".join(f"{name}:{(value or b'').decode()}" for name, value in sample.headers)
    key = NULL if sample.key is None else sample.key.decode()
    value = NULL if sample.value is None else sample.value.decode()
    return f"{headers or NULL}{FIELD}{key}{FIELD}{value}"


def _seen(line: bytes) -> Seen:
    time, offset, headers, key, value = line.split(FIELD.encode())
    stamp = _TIME.fullmatch(time)
    assert stamp, f"console-consumer printed {line[:100]!r}"
    return Seen(int(offset.removeprefix(b"Offset:")), int(stamp[1]), _null(key), _null(value), _headers(headers))


def _headers(data: bytes) -> Headers:
    if data == b"NO_HEADERS":
        return ()
    pairs = (part.partition(b":") for part in data.split(b","))
    return tuple((name.decode(), _null(value)) for name, _, value in pairs)


def _null(data: bytes) -> bytes | None:
    return None if data == NULL.encode() else data
