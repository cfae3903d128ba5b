"""`headrace produce`: lines in, records out."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from headrace.base.errors import ConfigError
from headrace.base.ids import TopicPartition
from headrace.cli.options import Bootstrap, CommandConfig, pair, verb
from headrace.cli.output import progress
from headrace.cli.target import Target, with_cluster
from headrace.client.cluster import Cluster
from headrace.client.producer import Producer
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec
from headrace.records.kernel import partition_for_key

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
    try:
        chosen = Codec[compression.upper()]
    except KeyError:
        raise ConfigError(f"--compression-type {compression!r}: expected none, gzip, snappy, lz4 or zstd") from None
    if acks not in (-1, 0, 1):
        raise ConfigError(f"--acks {acks}: expected -1, 0 or 1")
    pairs = tuple((name, value.encode()) for name, value in (pair("--header", text) for text in header or []))

    async def work(cluster: Cluster) -> int:
        partitions = await cluster.partitions(topic, create=True)
        if partition is not None and partition not in partitions:
            raise ConfigError(f"--partition {partition}: {topic} has partitions 0 to {len(partitions) - 1}")
        producer = Producer(cluster, acks=acks)
        sent = 0
        turn = 0
        with progress("records", None) as done:
            while lines := await asyncio.to_thread(_read_lines):
                batches: dict[int, BatchBuilder] = {}
                for line in lines:
                    key, value = _split(line, key_separator)
                    if partition is not None:
                        index = partition
                    elif key is not None:
                        index = partition_for_key(key, len(partitions))
                    else:
                        index = partitions[turn % len(partitions)]
                    builder = batches.setdefault(index, BatchBuilder())
                    builder.append(time.time_ns() // 1_000_000, key, value, pairs)
                    if builder.size >= BATCH_BYTES:
                        await producer.send(TopicPartition(topic, index), batches.pop(index), chosen)
                        turn += 1
                for index, builder in batches.items():
                    await producer.send(TopicPartition(topic, index), builder, chosen)
                turn += 1
                sent += len(lines)
                done.advance(len(lines))
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
