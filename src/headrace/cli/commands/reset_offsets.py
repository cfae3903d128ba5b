"""`headrace groups reset-offsets`: changes committed offsets like Kafka's tool; a dry run unless --execute."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.cli.options import Bootstrap, CommandConfig, Json
from headrace.cli.output import Failures, progress, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.cli.times import before_now, parse_datetime
from headrace.client.admin.groups import commit_offsets, committed_offsets, describe_group
from headrace.client.consumer.list_offsets import EARLIEST, LATEST, list_offset
from headrace.client.wire.cluster import Cluster

FILE_BYTES_MAX = 64 << 20
_TOPIC = re.compile(r"([a-zA-Z0-9._-]+)(?::([0-9]{1,9}(?:,[0-9]{1,9})*))?\Z")
_AT_REST = ("Empty", "Dead")


class Move(NamedTuple):
    """How new offsets are determined; exactly one field is set."""

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_offset: int | None = None
    shift_by: int | None = None
    to_datetime: str | None = None
    by_duration: str | None = None
    from_file: Path | None = None


class Moved(NamedTuple):
    partition: TopicPartition
    before: int | None
    after: int


def reset_offsets(
    group: Annotated[str, typer.Argument()],
    topic: Annotated[list[str] | None, typer.Option(metavar="NAME[:0,2]", help="all partitions, or these")] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="all that it has committed something for")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="what is committed, or the end")] = False,
    to_offset: Annotated[int | None, typer.Option(help="this one")] = None,
    shift_by: Annotated[int | None, typer.Option(help="so many further, or back")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="the first record from then on, as 2026-07-01T12:00:00")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="PnDTnHnMnS", help="so long before now, as P1DT6H or PT30M")
    ] = None,
    from_file: Annotated[Path | None, typer.Option(metavar="CSV", help="lines of topic,partition,offset")] = None,
    execute: Annotated[bool, typer.Option("--execute", help="do it; else it is only shown")] = False,
    export: Annotated[bool, typer.Option("--export", help="as CSV for --from-file")] = False,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Change the committed offsets of a group; the group must have no members."""
    move = Move(to_earliest, to_latest, to_current, to_offset, shift_by, to_datetime, by_duration, from_file)
    if sum(way not in (None, False) for way in move) != 1:
        ways = ", ".join(f"--{name.replace('_', '-')}" for name in Move._fields)
        raise ConfigError(f"whereto? Exactly one of {ways}")
    wanted = None if from_file is None else read_plan(from_file)
    if wanted is None and bool(topic) == all_topics:
        raise ConfigError("of which topics? Either --topic or --all-topics")

    async def work(cluster: Cluster) -> tuple[list[Moved], dict[TopicPartition, ErrorCode]]:
        await _check_at_rest(cluster, group)
        committed = {place: one.offset for place, one in (await committed_offsets(cluster, group)).items()}
        if wanted is not None:
            partitions = sorted(wanted)
        else:
            partitions = sorted(committed) if all_topics else await parse_topics(cluster, topic or [])
        moved = []
        with progress("partitions", len(partitions)) as done:
            for partition in partitions:
                before = committed.get(partition)
                target = None if wanted is None else wanted[partition]
                moved.append(Moved(partition, before, await _find(cluster, partition, before, move, target)))
                done.advance(1)
        codes = await commit_offsets(cluster, group, {one.partition: one.after for one in moved}) if execute else {}
        return moved, codes

    moved, codes = with_cluster(Target(bootstrap_server, command_config), work)
    failures = Failures()
    for partition, code in codes.items():
        failures.found(str(partition), code, None)
    _show(group, [one for one in moved if codes.get(one.partition, ErrorCode.NONE) is ErrorCode.NONE], export, json)
    failures.end()


async def _check_at_rest(cluster: Cluster, group: str) -> None:
    """Raise KafkaError if the group is active: its members would ignore the new offsets or overwrite them.

    An unknown group is accepted and gets its first offsets.
    """
    try:
        state = (await describe_group(cluster, group)).state
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if state not in _AT_REST:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group} is {state}: its members must stop first")


async def _find(
    cluster: Cluster, partition: TopicPartition, committed: int | None, move: Move, planned: int | None
) -> int:
    """Return the new offset, clamped to the partition's offsets as in Kafka's tool."""
    first, end = await list_offset(cluster, partition, EARLIEST), await list_offset(cluster, partition, LATEST)
    if move.to_earliest:
        return first
    if move.to_latest:
        return end
    if move.to_datetime is not None or move.by_duration is not None:
        at = (
            before_now("--by-duration", move.by_duration)
            if move.by_duration is not None
            else parse_datetime("--to-datetime", move.to_datetime or "")
        )
        found = await list_offset(cluster, partition, at)
        return found if found >= 0 else end
    if move.to_current:
        wanted = end if committed is None else committed
    elif move.shift_by is not None:
        if committed is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{partition}: nothing is committed that could be shifted")
        wanted = committed + move.shift_by
    else:
        wanted = planned if planned is not None else move.to_offset or 0
    return min(max(wanted, first), end)


async def parse_topics(cluster: Cluster, texts: list[str]) -> list[TopicPartition]:
    """Return the partitions of topics: `orders` stands for all of them, `orders:0,2` for two."""
    found: dict[TopicPartition, None] = {}
    for text in texts:
        match = _TOPIC.match(text)
        if match is None:
            raise ConfigError(f"--topic {text!r}: expected a name, or a name with partitions as orders:0,2")
        name, indexes = match.groups()
        known = await cluster.partitions(name)
        chosen = known if indexes is None else [int(index) for index in indexes.split(",")]
        for index in chosen:
            if index not in known:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has no partition {index}")
            found[TopicPartition(name, index)] = None
    return sorted(found)


def read_plan(file: Path) -> dict[TopicPartition, int]:
    """Read a file that --export has written. Raise ConfigError with the number of a malformed line."""
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"--from-file: {file} has more than {FILE_BYTES_MAX} bytes")
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--from-file: {file} cannot be read: {error}") from error
    plan: dict[TopicPartition, int] = {}
    for number, row in enumerate(csv.reader(lines), 1):
        if not row:
            continue
        try:
            topic, partition, offset = (cell.strip() for cell in row[-3:])  # Kafka's tool may write the group first
            plan[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError:
            raise ConfigError(f"--from-file: {file}, line {number}: expected topic,partition,offset") from None
    return plan


def _show(group: str, moved: list[Moved], export: bool, json: bool) -> None:
    if export:
        for one in moved:
            print(f"{one.partition.topic},{one.partition.partition},{one.after}")
    elif json:
        show_json([{**one.partition._asdict(), "before": one.before, "after": one.after} for one in moved])
    else:
        rows = [(group, *one.partition, one.before, one.after) for one in moved]
        show_table(("group", "topic", "partition", "before", "after"), rows)
