"""`headrace groups reset-offsets`: changes committed offsets like Kafka's tool; a dry run unless --execute."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.base.system_errors import system_error_text
from headrace.cli.options import PARTITIONS_OPTION, Bootstrap, CommandConfig, GroupId, Json
from headrace.cli.output import Failures, progress, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.cli.times import before_now, parse_datetime
from headrace.client.admin.groups import commit_offsets, committed_offsets, describe_group
from headrace.client.consumer.list_offsets import EARLIEST, LATEST, list_offset
from headrace.client.wire.cluster import Cluster

FILE_BYTES_MAX = 64 << 20
_TOPIC = re.compile(r"([a-zA-Z0-9._-]+)(?::([0-9]{1,9}(?:,[0-9]{1,9})*))?\Z")
_INACTIVE = ("Empty", "Dead")


class OffsetReset(NamedTuple):
    """How new offsets are determined; exactly one field is set."""

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_offset: int | None = None
    shift_by: int | None = None
    to_datetime: str | None = None
    by_duration: str | None = None
    from_file: Path | None = None

    def check(self) -> None:
        """Raise ConfigError unless exactly one field is set."""
        if sum(value not in (None, False) for value in self) != 1:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in self._fields)
            raise ConfigError(f"give exactly one of {flags}")


class OffsetChange(NamedTuple):
    partition: TopicPartition
    before: int | None
    after: int


def reset_offsets(
    group: GroupId,
    topic: Annotated[list[str] | None, PARTITIONS_OPTION] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics for which the group has committed offsets.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to the first offset.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Reset to the end of the log.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Keep the committed offset, or reset to the end if there is none.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option(help="Reset to this offset.")] = None,
    shift_by: Annotated[
        int | None, typer.Option(help="Shift the committed offset by this number, forwards or (if negative) backwards.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Reset to the first record at or after this time: 2026-07-01T12:00:00."),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="PnDTnHnMnS", help="Reset to this long before now: P1DT6H, PT30M.")
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Reset to the offsets in this file: topic,partition,offset per line."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Commit the new offsets; without it they are only shown.")
    ] = False,
    export: Annotated[bool, typer.Option("--export", help="Print the new offsets as CSV for --from-file.")] = False,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Reset the committed offsets of a group.

    The group must have no members.
    """
    reset = OffsetReset(to_earliest, to_latest, to_current, to_offset, shift_by, to_datetime, by_duration, from_file)
    reset.check()
    plan = None if from_file is None else read_plan(from_file)
    if plan is None and bool(topic) == all_topics:
        raise ConfigError("give either --topic or --all-topics")

    async def work(cluster: Cluster) -> tuple[list[OffsetChange], dict[TopicPartition, ErrorCode]]:
        await _check_inactive(cluster, group)
        changes = await _changes(cluster, group, None if all_topics else topic, reset, plan)
        codes = await commit_offsets(cluster, group, {one.partition: one.after for one in changes}) if execute else {}
        return changes, codes

    changes, codes = with_cluster(Target(bootstrap_server, command_config), work)
    failures = Failures()
    for partition, code in codes.items():
        failures.found(str(partition), code, None)
    _show(group, [one for one in changes if codes.get(one.partition, ErrorCode.NONE) is ErrorCode.NONE], export, json)
    failures.end()


async def _check_inactive(cluster: Cluster, group: str) -> None:
    """Raise KafkaError if the group is active: its members would ignore the new offsets or overwrite them.

    An unknown group is accepted and gets its first offsets.
    """
    try:
        state = (await describe_group(cluster, group)).state
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if state not in _INACTIVE:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group} is {state}: stop its members first")


async def _changes(
    cluster: Cluster,
    group: str,
    topics: list[str] | None,
    reset: OffsetReset,
    plan: dict[TopicPartition, int] | None,
) -> list[OffsetChange]:
    """Return the changes for the partitions of the plan, or else of `topics` (None: all with a committed offset)."""
    committed = {partition: one.offset for partition, one in (await committed_offsets(cluster, group)).items()}
    if plan is not None:
        partitions = sorted(plan)
    else:
        partitions = sorted(committed) if topics is None else await parse_topics(cluster, topics)
    changes = []
    with progress("partitions", len(partitions)) as done:
        for partition in partitions:
            before = committed.get(partition)
            planned = None if plan is None else plan[partition]
            changes.append(OffsetChange(partition, before, await _find(cluster, partition, before, reset, planned)))
            done.advance(1)
    return changes


async def _find(
    cluster: Cluster, partition: TopicPartition, committed: int | None, reset: OffsetReset, planned: int | None
) -> int:
    """Return the new offset, clamped to the partition's offsets as in Kafka's tool."""
    first, end = await list_offset(cluster, partition, EARLIEST), await list_offset(cluster, partition, LATEST)
    if reset.to_earliest:
        return first
    if reset.to_latest:
        return end
    if reset.to_datetime is not None or reset.by_duration is not None:
        at = (
            before_now("--by-duration", reset.by_duration)
            if reset.by_duration is not None
            else parse_datetime("--to-datetime", reset.to_datetime or "")
        )
        found = await list_offset(cluster, partition, at)
        return found if found >= 0 else end
    if reset.to_current:
        target = end if committed is None else committed
    elif reset.shift_by is not None:
        if committed is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{partition}: --shift-by needs a committed offset, and there is none"
            )
        target = committed + reset.shift_by
    else:
        target = planned if planned is not None else reset.to_offset or 0
    return min(max(target, first), end)


async def parse_topics(cluster: Cluster, texts: list[str]) -> list[TopicPartition]:
    """Return the partitions of topics: `orders` stands for all of them, `orders:0,2` for two."""
    found: dict[TopicPartition, None] = {}
    for text in texts:
        match = _TOPIC.match(text)
        if match is None:
            raise ConfigError(f"--topic {text!r}: expected a name, or a name with partitions such as orders:0,2")
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
            raise ConfigError(f"--from-file: {file} is larger than {FILE_BYTES_MAX} bytes")
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--from-file: {file} cannot be read: {system_error_text(error)}") from error
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


def _show(group: str, changes: list[OffsetChange], export: bool, json: bool) -> None:
    if export:
        for one in changes:
            print(f"{one.partition.topic},{one.partition.partition},{one.after}")
    elif json:
        show_json([{**one.partition._asdict(), "before": one.before, "after": one.after} for one in changes])
    else:
        rows = [(group, *one.partition, one.before, one.after) for one in changes]
        show_table(("group", "topic", "partition", "before", "after"), rows)
