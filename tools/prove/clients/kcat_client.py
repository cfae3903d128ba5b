"""kcat: librdkafka on the command line. It writes text lines, all with the same headers, and cannot set timestamps."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence

from tools.prove.clients.samples import Headers, Sample, Seen, WriteOptions

WAIT_S_MAX = 60.0
HEADERS: Headers = (("from", b"kcat"), ("empty", b""))
SEPARATOR = "\x1d"
# Lengths come first, so that keys and values may contain any byte.
FORMAT = r"%o %T %K %S \x1e%h\x1e%k%s\n"
_HEAD = re.compile(rb"(\d+) (-?\d+) (-?\d+) (-?\d+) \x1e")


class KcatClient:
    name = "kcat"

    def missing(self, codec: str) -> str | None:
        return None if shutil.which("kcat") else "kcat is not installed"

    def samples(self) -> Sequence[Sample]:
        return [
            Sample(b"key", b"value", HEADERS),
            Sample(b"", b"", HEADERS),
            Sample("Schlüssel".encode(), "値".encode(), HEADERS),
            Sample(b"large", b"0123456789abcdef" * 512, HEADERS),
            Sample(None, None, HEADERS),
            Sample(b"tombstone", None, HEADERS),
            Sample(None, b"no key", HEADERS),
        ]

    def write(self, bootstrap: str, topic: str, samples: Sequence[Sample], options: WriteOptions) -> None:
        """Write in two runs: kcat sends either all empty fields as empty or all as null."""
        empty = [sample for sample in samples if sample.key is not None and sample.value is not None]
        null = [sample for sample in samples if sample.key is None or sample.value is None]
        assert [*empty, *null] == list(samples), "records with nulls come last"
        for part, switch in ((empty, []), (null, ["-Z"])):
            lines = b"".join(
                (sample.key or b"") + SEPARATOR.encode() + (sample.value or b"") + b"\n" for sample in part
            )
            headers = [text for name, value in HEADERS for text in ("-H", f"{name}={(value or b'').decode()}")]
            self._run(
                *(
                    "-P",
                    "-b",
                    bootstrap,
                    "-t",
                    topic,
                    "-p",
                    "0",
                    "-K",
                    SEPARATOR,
                    "-z",
                    options.codec,
                    *switch,
                    *headers,
                ),
                *("-X", f"acks={options.acks}", "-X", f"enable.idempotence={str(options.idempotent).lower()}"),
                data=lines,
            )

    def read(self, bootstrap: str, topic: str, offset: int, count: int) -> list[Seen]:
        data = self._run(
            *("-C", "-q", "-b", bootstrap, "-t", topic, "-p", "0", "-o", str(offset), "-c", str(count), "-f", FORMAT),
            *("-X", "check.crcs=true"),
        )
        return parse(data)

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int:
        found = re.search(r"offset (-?\d+)", self._run("-Q", "-b", bootstrap, "-t", f"{topic}:0:{timestamp}").decode())
        assert found, "kcat -Q names no offset"
        return int(found[1])

    def _run(self, *arguments: str, data: bytes = b"") -> bytes:
        done = subprocess.run(["kcat", *arguments], input=data, capture_output=True, timeout=WAIT_S_MAX)
        if done.returncode != 0:
            raise AssertionError(f"kcat {' '.join(arguments)} failed: {done.stderr.decode(errors='replace')}")
        return done.stdout


def parse(data: bytes) -> list[Seen]:
    seen = []
    position = 0
    while position < len(data):
        head = _HEAD.match(data, position)
        assert head, f"kcat printed {data[position : position + 80]!r}"
        offset, timestamp, key_size, value_size = (int(text) for text in head.groups())
        headers_end = data.index(b"\x1e", head.end())
        headers = _headers(data[head.end() : headers_end])
        position = headers_end + 1
        key = None if key_size < 0 else data[position : position + key_size]
        position += max(key_size, 0)
        value = None if value_size < 0 else data[position : position + value_size]
        position += max(value_size, 0) + 1
        seen.append(Seen(offset, timestamp, key, value, headers))
    return seen


def _headers(data: bytes) -> Headers:
    """Parse `name=value,name=value`; our samples contain neither separator."""
    pairs = (part.partition(b"=") for part in data.split(b",")) if data else ()
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)
