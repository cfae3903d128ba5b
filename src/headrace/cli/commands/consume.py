"""`headrace consume`: prints records to standard output."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, NamedTuple

import typer

from headrace.base.errors import ConfigError
from headrace.base.ids import TopicPartition
from headrace.cli.options import Bootstrap, CommandConfig, check_partition, single_command
from headrace.cli.target import Target, with_cluster
from headrace.cli.times import parse_moment
from headrace.client.consumer.consumer import AsyncConsumer
from headrace.client.consumer.decoding import ConsumerRecord
from headrace.client.group.membership import CommittedOffset
from headrace.client.wire.cluster import Cluster

FORMATS = ("value", "key-value", "json")
EARLIEST, LATEST = "earliest", "latest"
RECORDS_AT_ONCE = 500
COMMIT_EVERY_S = 1.0
COMMIT_S_MAX = 5.0

app = single_command()


class Start(NamedTuple):
    """Where reading starts: at `time_ms` or `last` if one of them is set, otherwise at `offset`."""

    offset: str | None = None  # EARLIEST, LATEST or a number
    time_ms: int | None = None
    last: int | None = None  # number of offsets before the end of each partition


class Output(NamedTuple):
    """How records are printed, and when printing stops."""

    format: str
    messages_max: int
    stop_at_end: bool  # whether to stop at the end of all assigned partitions


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    group: Annotated[
        str | None,
        typer.Option(
            "-g", "--group", help="Read as a member of this group: start at its committed offsets, and commit."
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", help="Partition to read. Defaults to all partitions.")
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--offset",
            help="Start at earliest (the default), latest, or this offset. With --group, it applies only to partitions"
            " without a committed offset, and must be earliest or latest.",
        ),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Start at the first record at or after this time: 2026-07-01T12:00:00Z, milliseconds since 1970, or a"
            " duration before now such as PT30M.",
        ),
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, help="Start N offsets before the end of each partition.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("-n", "--max-messages", min=0, help="Stop after this many records.")
    ] = None,
    exit_at_end: Annotated[bool, typer.Option("-e", "--exit", help="Stop at the end of all partitions.")] = False,
    format: Annotated[str, typer.Option("-f", "--format", help="Output format: value, key-value or json.")] = "value",
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Print records as they arrive."""
    if format not in FORMATS:
        raise ConfigError(f"--format {format!r}: expected {', '.join(FORMATS)}")
    start = parse_start(offset, from_time, last, group, partition)
    output = Output(format, sys.maxsize if max_messages is None else max_messages, exit_at_end)

    async def work(cluster: Cluster) -> None:
        partitions = await cluster.partitions(topic)
        check_partition(topic, partition, partitions)
        if group is not None:
            await _read_as_member(cluster, group, topic, start, output)
        else:
            chosen = partitions if partition is None else [partition]
            await _read_partitions(cluster, [TopicPartition(topic, index) for index in chosen], start, output)

    with_cluster(Target(bootstrap_server, command_config), work)


def parse_start(
    offset: str | None, from_time: str | None, last: int | None, group: str | None, partition: int | None
) -> Start:
    """Return where to start. Raise ConfigError for an invalid start and for options that contradict each other."""
    given = {"--offset": offset, "--from": from_time, "--last": last}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)}: give only one of them")
    if offset is not None and offset not in (EARLIEST, LATEST) and not (offset.isdecimal() and len(offset) < 20):
        raise ConfigError(f"--offset {offset!r}: expected {EARLIEST}, {LATEST} or a number")
    if group is not None:
        if partition is not None:
            raise ConfigError("--partition and --group: the group assigns partitions; give only one of them")
        if from_time is not None or last is not None or (offset or EARLIEST).isdecimal():
            raise ConfigError(
                f"{chosen[0]} and --group: a group starts at its committed offsets; `headrace groups reset-offsets` changes them"
            )
    return Start(offset or EARLIEST, None if from_time is None else parse_moment("--from", from_time), last)


async def _read_partitions(
    cluster: Cluster, partitions: Sequence[TopicPartition], start: Start, output: Output
) -> None:
    """Print the records of these partitions, outside any group."""
    async with AsyncConsumer({"auto.offset.reset": "none"}, cluster=cluster) as consumer:
        consumer.assign(partitions)
        await _seek(consumer, start)
        async for _ in _print_records(consumer, output):
            pass


async def _seek(consumer: AsyncConsumer, start: Start) -> None:
    partitions = consumer.assignment()
    if start.time_ms is not None:
        consumer.seek_to_time(partitions, start.time_ms)
    elif start.last is not None:
        begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        for one in partitions:
            consumer.seek(one, max(begins[one], ends[one] - start.last))
    elif start.offset == LATEST:
        consumer.seek_to_end(partitions)
    elif start.offset == EARLIEST or start.offset is None:
        consumer.seek_to_beginning(partitions)
    else:
        for one in partitions:
            consumer.seek(one, int(start.offset))


async def _read_as_member(cluster: Cluster, group: str, topic: str, start: Start, output: Output) -> None:
    """Print records as a member of the group.

    Only printed records are committed, so that a record lost to a broken pipe is read again.
    """
    options = {"group.id": group, "auto.offset.reset": start.offset, "enable.auto.commit": False}
    loop = asyncio.get_running_loop()
    async with AsyncConsumer(options, cluster=cluster) as consumer:
        consumer.subscribe([topic])
        printed: dict[TopicPartition, CommittedOffset] = {}
        commit_at = loop.time()
        try:
            async for printed in _print_records(consumer, output):
                if printed and loop.time() >= commit_at:
                    await consumer.commit(printed)
                    commit_at = loop.time() + COMMIT_EVERY_S
        finally:
            mine = {one: offset for one, offset in printed.items() if one in consumer.assignment()}
            if mine:
                await consumer.commit(mine, COMMIT_S_MAX)


async def _print_records(
    consumer: AsyncConsumer, output: Output
) -> AsyncIterator[dict[TopicPartition, CommittedOffset]]:
    """Print records until the end; after each poll, yield the positions after the printed records."""
    left = output.messages_max
    while left > 0:
        records = await consumer.poll(max_records=min(left, RECORDS_AT_ONCE))
        for record in records:
            sys.stdout.buffer.write(_show(record, output.format) + b"\n")
        sys.stdout.buffer.flush()
        left -= len(records)
        yield consumer.positions()
        partitions = consumer.assignment()
        if output.stop_at_end and partitions and all(consumer.lag(one) == 0 for one in partitions):
            return


def _show(record: ConsumerRecord, format: str) -> bytes:
    if format == "value":
        return record.value or b""
    if format == "key-value":
        return (record.key or b"") + b"\t" + (record.value or b"")
    return json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
        }
    ).encode()


def _text(data: bytes | None) -> str | dict[str, str] | None:
    """Return UTF-8 data as text, and other data as a dict with its base64 encoding."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
