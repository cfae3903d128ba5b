"""`headrace groups list | describe | members | delete | delete-offsets`: groups, their members and their lag."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.cli.commands.reset_offsets import parse_topics, reset_offsets
from headrace.cli.options import PARTITIONS_OPTION, Bootstrap, CommandConfig, GroupId, Json, command_group
from headrace.cli.output import Failures, format_duration, progress, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.client.admin.groups import (
    GroupInfo,
    Member,
    committed_offsets,
    delete_group,
    describe_group,
    list_groups,
)
from headrace.client.admin.groups import delete_offsets as delete_committed_offsets
from headrace.client.consumer.list_offsets import LATEST, list_offset
from headrace.client.consumer.range_reader import read_once
from headrace.client.wire.cluster import Cluster

LOOK_BYTES = 64 * 1024  # bytes to read from a partition for the timestamp of its first unread record
T = TypeVar("T")

app = command_group()


@app.callback()
def _group() -> None:
    """List, describe and delete groups; reset and delete their offsets."""


Groups = Annotated[list[str] | None, typer.Argument(metavar="GROUP", show_default=False, help="Group ids.")]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups of the cluster, instead of names.")]


class PartitionLag(NamedTuple):
    """A partition that a group reads. Lags are None if no offset is committed or the partition is unavailable."""

    partition: TopicPartition
    committed: int | None
    end: int | None
    lag: int | None
    lag_ms: int | None  # age of the first unread record
    member: Member | None


@app.command(name="list")
def show_list(
    state: Annotated[
        list[str] | None, typer.Option(help="Show only groups in this state (Stable, Empty …); may be repeated.")
    ] = None,
    type: Annotated[
        list[str] | None, typer.Option(help="Show only groups of this type (classic, consumer); may be repeated.")
    ] = None,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """List the groups of the cluster."""
    listed = with_cluster(
        Target(bootstrap_server, command_config), lambda cluster: list_groups(cluster, state or [], type or [])
    )
    if json:
        show_json([one._asdict() for one in listed])
    else:
        show_table(("group", "type", "state", "protocol"), listed)


@app.command()
def describe(
    groups: Groups = None,
    all_groups: AllGroups = False,
    state: Annotated[
        bool, typer.Option("--state", help="Show the state of the groups instead of their partitions.")
    ] = False,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Show the committed offsets and the lag of groups.

    The lag is shown in records, and as the age of the first unread record.
    """

    async def one(cluster: Cluster, group: str) -> tuple[GroupInfo, list[PartitionLag]]:
        found = await describe_group(cluster, group)
        return found, [] if state else await lags(cluster, found)

    described = _each(groups, all_groups, Target(bootstrap_server, command_config), one)
    if json:
        show_json([_group_json(found, partition_lags) for found, partition_lags in described.results])
    elif state:
        rows = [
            (found.group, found.type, found.state, found.assignor, found.coordinator, len(found.members), found.epoch)
            for found, _ in described.results
        ]
        show_table(("group", "type", "state", "assignor", "coordinator", "members", "epoch"), rows)
    elif described.results or not described.failures:
        show_table(
            ("group", "topic", "partition", "committed", "end", "lag", "lag time", "member", "host", "client"),
            [_row(found.group, one) for found, partition_lags in described.results for one in partition_lags],
        )
    described.failures.end()


@app.command()
def members(
    groups: Groups = None,
    all_groups: AllGroups = False,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Show the members of groups and their partitions."""
    described = _each(groups, all_groups, Target(bootstrap_server, command_config), describe_group)
    if json:
        show_json([_group_json(found, []) for found in described.results])
    elif described.results or not described.failures:
        show_table(
            ("group", "member", "instance", "host", "client", "epoch", "partitions"),
            [
                (found.group, one.member_id, one.instance_id, one.host, one.client_id, one.epoch, _names(one.assigned))
                for found in described.results
                for one in found.members
            ],
        )
    described.failures.end()


@app.command()
def delete(
    groups: Groups = None,
    all_groups: AllGroups = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Delete groups and their committed offsets.

    The groups must have no members.
    """

    async def one(cluster: Cluster, group: str) -> str:
        code = await delete_group(cluster, group)
        if code is not ErrorCode.NONE:
            raise KafkaError(code)
        return group

    deleted = _each(groups, all_groups, Target(bootstrap_server, command_config), one)
    for group in deleted.results:
        print(f"deleted group {group}")
    deleted.failures.end()


@app.command(name="delete-offsets")
def delete_offsets(
    group: GroupId,
    topic: Annotated[list[str], PARTITIONS_OPTION],
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Delete committed offsets of a group.

    The group must no longer be subscribed to the topics.
    """

    async def work(cluster: Cluster) -> dict[TopicPartition, ErrorCode]:
        return await delete_committed_offsets(cluster, group, await parse_topics(cluster, topic))

    failures = Failures()
    for partition, code in with_cluster(Target(bootstrap_server, command_config), work).items():
        if not failures.found(str(partition), code, None):
            print(f"deleted the offset of {partition} in group {group}")
    failures.end()


app.command(name="reset-offsets")(reset_offsets)


# --- many groups


class _Described(NamedTuple):
    results: list[Any]
    failures: Failures


def _each(
    groups: list[str] | None, all_groups: bool, target: Target, work: Callable[[Cluster, str], Awaitable[T]]
) -> _Described:
    """Do the work for each group; the failure of one group does not affect the others."""
    if bool(groups) == all_groups:
        raise ConfigError("give either group ids or --all-groups")
    failures = Failures()

    async def run(cluster: Cluster) -> list[T]:
        names = groups or [one.group for one in await list_groups(cluster, [], [])]
        results = []
        with progress("groups", len(names)) as done:
            for name in names:
                try:
                    results.append(await work(cluster, name))
                except KafkaError as error:
                    failures.found(f"group {name}", error.code, error.message)
                done.advance(1)
        return results

    return _Described(with_cluster(target, run), failures)


# --- lag


async def lags(cluster: Cluster, group: GroupInfo) -> list[PartitionLag]:
    committed, owners = await committed_offsets(cluster, group.group), group.owners()
    found = []
    for partition in sorted({**committed, **owners}):
        offset = committed[partition].offset if partition in committed else None
        try:
            end = await list_offset(cluster, partition, LATEST)
            lag = None if offset is None else max(0, end - offset)
            age = await _age_ms(cluster, partition, offset) if lag and offset is not None else lag
        except KafkaError:
            end, lag, age = None, None, None  # the topic was deleted or the partition has no leader
        found.append(PartitionLag(partition, offset, end, lag, age, owners.get(partition)))
    return found


async def _age_ms(cluster: Cluster, partition: TopicPartition, offset: int) -> int | None:
    fetched = await read_once(cluster, partition, offset, wait_ms=0, max_bytes=LOOK_BYTES)
    return max(0, int(time.time() * 1000) - fetched.records[0].timestamp) if fetched.records else None


# --- output


def _row(group: str, one: PartitionLag) -> tuple[object, ...]:
    member = one.member
    who = (None, None, None) if member is None else (member.member_id, member.host, member.client_id)
    return (group, *one.partition, one.committed, one.end, one.lag, format_duration(one.lag_ms), *who)


def _names(partitions: list[TopicPartition]) -> str:
    by_topic: dict[str, list[str]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(str(partition))
    return " ".join(f"{topic}:{','.join(indexes)}" for topic, indexes in by_topic.items())


def _group_json(found: GroupInfo, partition_lags: list[PartitionLag]) -> dict[str, Any]:
    return {
        "group": found.group,
        "type": found.type,
        "state": found.state,
        "assignor": found.assignor,
        "coordinator": found.coordinator,
        "epoch": found.epoch,
        "target_epoch": found.target_epoch,
        "members": [
            {
                "member_id": one.member_id,
                "instance_id": one.instance_id,
                "client_id": one.client_id,
                "host": one.host,
                "epoch": one.epoch,
                "assigned": [str(partition) for partition in one.assigned],
                "target": None if one.target is None else [str(partition) for partition in one.target],
            }
            for one in found.members
        ],
        "partitions": [
            {
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "committed": one.committed,
                "end": one.end,
                "lag": one.lag,
                "lag_ms": one.lag_ms,
                "member_id": None if one.member is None else one.member.member_id,
            }
            for one in partition_lags
        ],
    }
