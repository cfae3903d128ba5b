"""`headrace offsets get`: the first or last offsets of partitions, or offsets by time."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, NamedTuple

import typer

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.cli.commands.topics import MoreNames, Names, select_topics
from headrace.cli.options import Bootstrap, CommandConfig, Json, command_group
from headrace.cli.output import Failures, progress, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.cli.times import parse_datetime
from headrace.client.admin.topics import describe_topics
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

TIMES = {"latest": -1, "earliest": -2, "max-timestamp": -3, "earliest-local": -4, "latest-tiered": -5}
PARTITIONS_AT_ONCE = 1000

app = command_group()


@app.callback()
def _group() -> None:
    """Show the first or last offsets of partitions, or offsets by time."""


class Found(NamedTuple):
    partition: TopicPartition
    code: int
    offset: int
    timestamp: int
    leader_epoch: int


@app.command()
def get(
    names: Names = None,
    topic: MoreNames = None,
    partitions: Annotated[str | None, typer.Option(metavar="0,2,4-7", help="Partitions. Defaults to all.")] = None,
    time: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help="Point in time: latest (-1), earliest (-2), max-timestamp (-3), earliest-local (-4), latest-tiered (-5), or the first"
            " record at or after a time: 2026-07-01T12:00:00Z, or milliseconds since 1970.",
        ),
    ] = "latest",
    exclude_internal: Annotated[
        bool,
        typer.Option(
            "--exclude-internal-topics",
            "--exclude-internal",
            help="Leave out internal topics such as __consumer_offsets.",
        ),
    ] = False,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Show the offsets of partitions at a point in time."""
    when, chosen = parse_time(time), _parse_partitions(partitions)
    patterns = [*(names or []), *(topic or [])]

    async def work(cluster: Cluster) -> list[Found]:
        await cluster.refresh(None)
        found = select_topics(await describe_topics(cluster, None), patterns, exclude_internal)
        requested = [
            TopicPartition(one.name, partition.partition)
            for one in found
            for partition in one.partitions
            if chosen is None or partition.partition in chosen
        ]
        return await _list_offsets(cluster, requested, when)

    failures = Failures()
    results = with_cluster(Target(bootstrap_server, command_config), work)
    good = [one for one in results if not failures.found(str(one.partition), one.code, None)]
    if json or good or not failures:
        _show(good, json)
    failures.end()


def _show(offsets: list[Found], json: bool) -> None:
    if json:
        show_json(
            [
                {
                    "topic": one.partition.topic,
                    "partition": one.partition.partition,
                    "offset": one.offset if one.offset >= 0 else None,
                    "timestamp": one.timestamp if one.timestamp >= 0 else None,
                    "leader_epoch": one.leader_epoch if one.leader_epoch >= 0 else None,
                }
                for one in offsets
            ]
        )
    else:
        rows = [(*one.partition, one.offset if one.offset >= 0 else "none") for one in offsets]
        show_table(("topic", "partition", "offset"), rows)


async def _list_offsets(cluster: Cluster, requested: list[TopicPartition], when: int) -> list[Found]:
    by_leader: dict[Connection, list[TopicPartition]] = defaultdict(list)
    results = []
    for partition in requested:
        try:
            by_leader[await cluster.leader(partition)].append(partition)
        except KafkaError:
            results.append(Found(partition, ErrorCode.LEADER_NOT_AVAILABLE, -1, -1, -1))
    with progress("partitions", len(requested)) as done:
        for connection, partitions in by_leader.items():
            for at in range(0, len(partitions), PARTITIONS_AT_ONCE):
                some = partitions[at : at + PARTITIONS_AT_ONCE]
                results += await _list_offsets_of(connection, some, when)
                done.advance(len(some))
    return sorted(results)


async def _list_offsets_of(connection: Connection, partitions: list[TopicPartition], when: int) -> list[Found]:
    topics: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=when))
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=some) for name, some in topics.items()],
    )
    response: ListOffsetsResponse = await connection.request(request)
    return [
        Found(
            TopicPartition(topic.name, one.partition_index), one.error_code, one.offset, one.timestamp, one.leader_epoch
        )
        for topic in response.topics
        for one in topic.partitions
    ]


def parse_time(text: str) -> int:
    if text in TIMES:
        return TIMES[text]
    try:
        number = int(text)
        if number >= min(TIMES.values()):
            return number
    except ValueError:
        pass
    try:
        return parse_datetime("--time", text)
    except ConfigError:
        raise ConfigError(
            f"--time {text!r}: expected {', '.join(TIMES)}, milliseconds since 1970, or a time such as 2026-07-01T12:00:00Z"
        ) from None


def _parse_partitions(text: str | None) -> set[int] | None:
    if text is None:
        return None
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or len(first + last) > 12:
            raise ConfigError(f"--partitions {text!r}: expected numbers and ranges such as 0,2,4-7")
        chosen.update(range(int(first), int(last or first) + 1))
    return chosen
