"""`headrace records delete`: deletes records from the beginning of partitions."""

from __future__ import annotations

import json as jsonlib
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.base.system_errors import system_error_text
from headrace.cli.options import Bootstrap, CommandConfig, Json, command_group
from headrace.cli.output import Failures, progress, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.client.admin.topic_changes import delete_records_of
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection

TIMEOUT_MS = 30_000
FILE_BYTES_MAX = 64 << 20
PARTITIONS_AT_ONCE = 1000

app = command_group()


@app.callback()
def _group() -> None:
    """Delete records from the beginning of partitions."""


@app.command()
def delete(
    offset_json_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='JSON file: {"partitions": [{"topic": "orders", "partition": 0, "offset": 1000}], "version": 1}.'
            " Offset -1 deletes all records.",
        ),
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Topic of a single partition, instead of a file.")] = None,
    partition: Annotated[int, typer.Option("-p", "--partition", help="Partition of --topic.")] = 0,
    before_offset: Annotated[
        int | None, typer.Option("--before-offset", help="First offset to keep; -1 deletes all records.")
    ] = None,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Delete all records before an offset.

    This cannot be undone.
    """
    if (offset_json_file is None) == (topic is None or before_offset is None):
        raise ConfigError("give either --offset-json-file, or --topic with --before-offset (and --partition)")
    if offset_json_file is not None:
        requested = read_offsets(offset_json_file)
    else:
        assert topic is not None and before_offset is not None
        requested = {TopicPartition(topic, partition): before_offset}

    async def work(cluster: Cluster) -> list[tuple[TopicPartition, int, int]]:
        await cluster.refresh(sorted({one.topic for one in requested}))
        results: list[tuple[TopicPartition, int, int]] = []
        by_leader: dict[Connection, list[TopicPartition]] = defaultdict(list)
        for one in requested:
            try:
                by_leader[await cluster.leader(one)].append(one)
            except KafkaError:
                results.append((one, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1))
        with progress("partitions", len(requested)) as done:
            for connection, partitions in by_leader.items():
                for at in range(0, len(partitions), PARTITIONS_AT_ONCE):
                    some = partitions[at : at + PARTITIONS_AT_ONCE]
                    before = {one: requested[one] for one in some}
                    outcomes = await delete_records_of(connection, before, timeout_ms=TIMEOUT_MS)
                    results += [
                        (one, outcome.code, -1) if isinstance(outcome, KafkaError) else (one, ErrorCode.NONE, outcome)
                        for one, outcome in outcomes.items()
                    ]
                    done.advance(len(some))
        return sorted(results)

    failures = Failures()
    results = with_cluster(Target(bootstrap_server, command_config), work)
    good = [(one, low) for one, code, low in results if not failures.found(str(one), code, None)]
    if json:
        show_json([{"topic": one.topic, "partition": one.partition, "low_watermark": low} for one, low in good])
    elif good or not failures:
        show_table(("topic", "partition", "low watermark"), [(*one, low) for one, low in good])
    failures.end()


def read_offsets(file: Path) -> dict[TopicPartition, int]:
    """Read a file in the format of kafka-delete-records."""
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"--offset-json-file: {file} is larger than {FILE_BYTES_MAX} bytes")
        document = jsonlib.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--offset-json-file: {file} cannot be read: {system_error_text(error)}") from error
    if not isinstance(document, dict) or document.get("version", 1) != 1 or not document.get("partitions"):
        raise ConfigError(f'--offset-json-file: {file}: expected {{"partitions": […], "version": 1}}')
    requested: dict[TopicPartition, int] = {}
    for entry in document["partitions"]:
        one, offset = _entry(file, entry)
        if one in requested:
            raise ConfigError(f"--offset-json-file: {file} names {one} twice")
        requested[one] = offset
    return requested


def _entry(file: Path, entry: Any) -> tuple[TopicPartition, int]:
    try:
        topic, partition, offset = entry["topic"], entry["partition"], entry["offset"]
    except (TypeError, KeyError):
        topic = partition = offset = None
    if not (isinstance(topic, str) and type(partition) is int and type(offset) is int):
        raise ConfigError(
            f'--offset-json-file: {file}: expected each partition as {{"topic": text, "partition": number, "offset": number}}'
        )
    return TopicPartition(topic, partition), offset
