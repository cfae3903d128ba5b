"""`headrace produce`: sends each line of standard input as a record."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer

from headrace.base.errors import ConfigError
from headrace.cli.options import Bootstrap, CommandConfig, check_partition, parse_pair, single_command
from headrace.cli.output import progress
from headrace.cli.target import Target, with_cluster
from headrace.client.producer.deliveries import Sent
from headrace.client.producer.producer import AsyncProducer
from headrace.client.wire.cluster import Cluster
from headrace.records.compression import Codec

BATCH_BYTES = 64 * 1024
LINES_AT_ONCE = 10_000

Headers = tuple[tuple[str, bytes | None], ...]


class LineFormat(NamedTuple):
    """How a line is parsed into a record."""

    key_separator: bytes | None = None
    headers_delimiter: bytes | None = None  # None if lines contain no headers
    null_marker: bytes | None = None
    empty_as_null: bool = False
    headers: Headers = ()  # headers of every record


class ParsedLine(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


app = single_command()


KeySeparator = Annotated[
    str | None,
    typer.Option(
        "-k",
        "--key-separator",
        help="Separator between the key and the value of a line. Without it, records have no keys.",
    ),
]
PartitionIndex = Annotated[
    int | None,
    typer.Option(
        "-p",
        "--partition",
        help="Partition to write to. Defaults to the partitioner's choice, by the hash of the key.",
    ),
]
Compression = Annotated[
    str, typer.Option("-z", "--compression-type", help="Compression: none, gzip, snappy, lz4 or zstd.")
]
Acks = Annotated[int, typer.Option(help="Acknowledgements to wait for: -1 (all in-sync replicas), 0 or 1.")]
Header = Annotated[
    list[str] | None,
    typer.Option("-H", "--header", metavar="NAME=VALUE", help="Header to add to every record; may be repeated."),
]
ParseHeaders = Annotated[
    bool,
    typer.Option("--parse-headers", help="Read headers from the start of each line: name:value,name:value and a tab."),
]
HeadersDelimiter = Annotated[
    str,
    typer.Option(
        "--headers-delimiter",
        metavar="TEXT",
        help="Delimiter after the headers of a line. Defaults to a tab.",
        show_default=False,
    ),
]
NullMarker = Annotated[
    str | None,
    typer.Option("--null-marker", metavar="TEXT", help="Text that stands for a null key, value or header value."),
]
EmptyAsNull = Annotated[
    bool,
    typer.Option("-Z", "--empty-as-null", help="Send empty values as null, which is a tombstone in a compacted topic."),
]


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to write to.")],
    key_separator: KeySeparator = None,
    partition: PartitionIndex = None,
    compression: Compression = "none",
    acks: Acks = -1,
    header: Header = None,
    parse_headers: ParseHeaders = False,
    headers_delimiter: HeadersDelimiter = "\t",
    null_marker: NullMarker = None,
    empty_as_null: EmptyAsNull = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Send each line of standard input as a record."""
    if compression.upper() not in Codec.__members__:
        raise ConfigError(f"--compression-type {compression!r}: expected none, gzip, snappy, lz4 or zstd")
    if acks not in (-1, 0, 1):
        raise ConfigError(f"--acks {acks}: expected -1, 0 or 1")
    if key_separator == "" or headers_delimiter == "" or null_marker == "":
        raise ConfigError(
            "--key-separator, --headers-delimiter and --null-marker must not be empty (-Z sends empty values as null)"
        )
    lines = LineFormat(
        key_separator=_encoded(key_separator),
        headers_delimiter=headers_delimiter.encode() if parse_headers else None,
        null_marker=_encoded(null_marker),
        empty_as_null=empty_as_null,
        headers=tuple(
            (name, value.encode()) for name, value in (parse_pair("--header", text) for text in header or [])
        ),
    )
    options = {"acks": acks, "compression.type": compression.lower(), "batch.size": BATCH_BYTES}

    async def work(cluster: Cluster) -> int:
        check_partition(topic, partition, await cluster.partitions(topic, create=True))
        async with AsyncProducer(options, cluster=cluster) as producer:
            return await _send_lines(producer, topic, partition, lines)

    sent = with_cluster(Target(bootstrap_server, command_config), work)
    print(f"sent {sent} record(s) to {topic}", file=sys.stderr)


async def _send_lines(producer: AsyncProducer, topic: str, partition: int | None, lines: LineFormat) -> int:
    """Send the lines of standard input and return their number once all of them are delivered."""
    sent = 0
    under_way: list[asyncio.Future[Sent]] = []
    with progress("records", None) as done:
        while some := await asyncio.to_thread(_read_lines):
            await asyncio.gather(*under_way)  # deliveries of the previous round; the first failure ends the command
            under_way = []
            for number, line in enumerate(some, sent + 1):
                key, value, headers = parse_line(line, number, lines)
                under_way.append(await producer.send(topic, value, key, partition=partition, headers=headers))
            sent += len(some)
            done.advance(len(some))
        await asyncio.gather(*under_way)
    return sent


def _read_lines() -> list[bytes]:
    """Read up to LINES_AT_ONCE lines, or one from a terminal; return an empty list at the end of the input."""
    return list(_up_to(LINES_AT_ONCE))


def _up_to(count: int) -> Iterator[bytes]:
    if sys.stdin.isatty():
        count = 1
    for _ in range(count):
        line = sys.stdin.buffer.readline()
        if not line:
            return
        yield line.rstrip(b"\n")


def parse_line(line: bytes, number: int, how: LineFormat) -> ParsedLine:
    """Return key, value and headers of a line; raise ConfigError, with its number, if its headers cannot be read."""
    headers = how.headers
    if how.headers_delimiter is not None:
        text, found, line = line.partition(how.headers_delimiter)
        if not found:
            raise ConfigError(
                f"line {number} has no {how.headers_delimiter.decode()!r} after its headers (--parse-headers)"
            )
        headers += _parse_headers(text, number, how)
    key: bytes | None = None
    value: bytes | None = line
    if how.key_separator is not None and how.key_separator in line:
        key, _, value = line.partition(how.key_separator)
    if how.empty_as_null and not value:
        value = None
    return ParsedLine(_null_if_marked(key, how), _null_if_marked(value, how), headers)


def _parse_headers(text: bytes, number: int, how: LineFormat) -> Headers:
    found = []
    for part in text.split(b",") if text else ():
        name, colon, value = part.partition(b":")
        if not colon or not name:
            raise ConfigError(f"line {number}: {part.decode(errors='replace')!r} is not a header; expected name:value")
        try:
            found.append((name.decode(), _null_if_marked(value, how)))
        except UnicodeDecodeError:
            raise ConfigError(f"line {number}: the name of a header is not UTF-8") from None
    return tuple(found)


def _null_if_marked(data: bytes | None, how: LineFormat) -> bytes | None:
    return None if data is None or data == how.null_marker else data


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
