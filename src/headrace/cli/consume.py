"""`headrace consume`: records to standard output."""

from __future__ import annotations

import base64
import json
import sys
from typing import Annotated

import typer

from headrace.base.errors import ConfigError
from headrace.base.ids import TopicPartition
from headrace.cli.options import Bootstrap, CommandConfig, verb
from headrace.cli.target import Target, with_cluster
from headrace.client.cluster import Cluster
from headrace.client.consumer import AsyncConsumer
from headrace.client.decoding import ConsumerRecord

FORMATS = ("value", "key-value", "json")
RECORDS_AT_ONCE = 500

app = verb()


@app.command()
def consume(
    topic: str,
    partition: Annotated[int | None, typer.Option("-p", "--partition", help="else all")] = None,
    offset: Annotated[str, typer.Option("-o", "--offset", help="earliest, latest, or a number")] = "earliest",
    max_messages: Annotated[int | None, typer.Option("-n", "--max-messages")] = None,
    exit_at_end: Annotated[bool, typer.Option("-e", "--exit", help="stop at the end of all partitions")] = False,
    format: Annotated[str, typer.Option("-f", "--format", help="value, key-value or json")] = "value",
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Print records as they come."""
    if format not in FORMATS:
        raise ConfigError(f"--format {format!r}: expected {', '.join(FORMATS)}")
    if offset not in ("earliest", "latest") and not offset.isdigit():
        raise ConfigError(f"--offset {offset!r}: expected earliest, latest or a number")

    async def work(cluster: Cluster) -> None:
        partitions = await cluster.partitions(topic)
        if partition is not None:
            if partition not in partitions:
                raise ConfigError(f"--partition {partition}: {topic} has partitions 0 to {len(partitions) - 1}")
            partitions = [partition]
        consumer = AsyncConsumer({"auto.offset.reset": "none"}, cluster=cluster)
        consumer.assign(TopicPartition(topic, index) for index in partitions)
        for one in consumer.assignment():
            if offset.isdigit():
                consumer.seek(one, int(offset))
            else:
                (consumer.seek_to_beginning if offset == "earliest" else consumer.seek_to_end)([one])
        try:
            await _follow(consumer, sys.maxsize if max_messages is None else max_messages, exit_at_end, format)
        finally:
            await consumer.close()

    with_cluster(Target(bootstrap_server, command_config), work)


async def _follow(consumer: AsyncConsumer, left: int, exit_at_end: bool, format: str) -> None:
    while left > 0:
        records = await consumer.poll(max_records=min(left, RECORDS_AT_ONCE))
        for record in records:
            sys.stdout.buffer.write(_show(record, format) + b"\n")
        sys.stdout.buffer.flush()
        left -= len(records)
        if exit_at_end and all(consumer.lag(one) == 0 for one in consumer.assignment()):
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
    """Text where it is text; else base64, marked as such."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
