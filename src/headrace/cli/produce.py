"""`headrace produce`: lines in, records out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from headrace.base.errors import ConfigError
from headrace.cli.options import Bootstrap, CommandConfig, pair, verb
from headrace.cli.output import progress
from headrace.cli.target import Target, with_cluster
from headrace.client.cluster import Cluster
from headrace.client.deliveries import Sent
from headrace.client.producer import AsyncProducer
from headrace.records.compression import Codec

BATCH_BYTES = 64 * 1024
LINES_AT_ONCE = 10_000


app = verb()


@app.command()
def produce(
    topic: str,
    key_separator: Annotated[
        str | None, typer.Option("-k", "--key-separator", help="text before it on a line is the key")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", help="else by the key's hash, or in turn")
    ] = None,
    compression: Annotated[
        str, typer.Option("-z", "--compression-type", help="none, gzip, snappy, lz4 or zstd")
    ] = "none",
    acks: Annotated[int, typer.Option(help="-1 (all), 0 or 1")] = -1,
    header: Annotated[list[str] | None, typer.Option("-H", "--header", metavar="NAME=VALUE")] = None,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Send each line of standard input as a record."""
    if compression.upper() not in Codec.__members__:
        raise ConfigError(f"--compression-type {compression!r}: expected none, gzip, snappy, lz4 or zstd")
    if acks not in (-1, 0, 1):
        raise ConfigError(f"--acks {acks}: expected -1, 0 or 1")
    pairs = tuple((name, value.encode()) for name, value in (pair("--header", text) for text in header or []))

    async def work(cluster: Cluster) -> int:
        partitions = await cluster.partitions(topic, create=True)
        if partition is not None and partition not in partitions:
            raise ConfigError(f"--partition {partition}: {topic} has partitions 0 to {len(partitions) - 1}")
        options = {"acks": acks, "compression.type": compression.lower(), "batch.size": BATCH_BYTES}
        sent = 0
        async with AsyncProducer(options, cluster=cluster) as producer:
            with progress("records", None) as done:
                under_way: list[asyncio.Future[Sent]] = []
                while lines := await asyncio.to_thread(_read_lines):
                    await asyncio.gather(*under_way)  # those of the round before: the first that failed ends it
                    under_way = []
                    for line in lines:
                        key, value = _split(line, key_separator)
                        under_way.append(await producer.send(topic, value, key, partition=partition, headers=pairs))
                    sent += len(lines)
                    done.advance(len(lines))
                await asyncio.gather(*under_way)
        return sent

    sent = with_cluster(Target(bootstrap_server, command_config), work)
    print(f"sent {sent} record(s) to {topic}", file=sys.stderr)


def _read_lines() -> list[bytes]:
    """What is there: at least one line, unless the input has ended."""
    return list(_up_to(LINES_AT_ONCE))


def _up_to(count: int) -> Iterator[bytes]:
    if sys.stdin.isatty():
        count = 1
    for _ in range(count):
        line = sys.stdin.buffer.readline()
        if not line:
            return
        yield line.rstrip(b"\n")


def _split(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    return (key, value) if found else (None, line)
