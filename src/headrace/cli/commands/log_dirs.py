"""`headrace log-dirs describe`: the data directories of brokers and the sizes of their partitions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.base.errors import ConfigError, ErrorCode
from headrace.cli.options import Bootstrap, CommandConfig, Json, command_group
from headrace.cli.output import check, make_error, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

app = command_group()


@app.callback()
def _group() -> None:
    """Show the data directories of brokers and the partitions in them."""


@app.command()
def describe(
    broker_list: Annotated[str | None, typer.Option(metavar="1,2", help="Broker ids. Defaults to all brokers.")] = None,
    topic_list: Annotated[str | None, typer.Option(metavar="a,b", help="Topics. Defaults to all topics.")] = None,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Show directories, their disk space and partitions."""
    try:
        brokers = [int(text) for text in broker_list.split(",")] if broker_list else None
    except ValueError:
        raise ConfigError(f"--broker-list {broker_list!r}: expected numbers separated by commas") from None
    topics = {name.strip() for name in topic_list.split(",")} if topic_list else None

    async def work(cluster: Cluster) -> list[tuple[int, DescribeLogDirsResponse]]:
        responses = []
        for broker in brokers or await cluster.brokers():
            connection = await cluster.broker(broker)
            response: DescribeLogDirsResponse = await connection.request(DescribeLogDirsRequest(topics=None))
            check(response.error_code, f"broker {broker}")
            responses.append((broker, response))
        return responses

    described = [
        (broker, [_as_json(one, topics) for one in sorted(response.results, key=lambda one: one.log_dir)])
        for broker, response in with_cluster(Target(bootstrap_server, command_config), work)
    ]
    if json:
        # The format of kafka-log-dirs, with the disk space added.
        show_json({"version": 1, "brokers": [{"broker": broker, "logDirs": dirs} for broker, dirs in described]})
        return
    for broker, dirs in described:
        for one in dirs:
            space = f"{_size(one['usableBytes'])} free of {_size(one['totalBytes'])}" if one["totalBytes"] >= 0 else ""
            state = f"  {one['error']}" if one["error"] else ""
            print(f"broker {broker}  {one['logDir']}  {space}{'  cordoned' if one['isCordoned'] else ''}{state}")
        show_table(
            ("broker", "directory", "partition", "bytes", "lag", "future"),
            [
                (broker, one["logDir"], part["partition"], part["size"], part["offsetLag"], part["isFuture"] or "")
                for one in dirs
                for part in one["partitions"]
            ],
        )


def _as_json(one: DescribeLogDirsResponse.DescribeLogDirsResult, topics: set[str] | None) -> dict[str, Any]:
    return {
        "logDir": one.log_dir,
        "error": None if one.error_code == ErrorCode.NONE else str(make_error(one.error_code, None)),
        "totalBytes": one.total_bytes,
        "usableBytes": one.usable_bytes,
        "isCordoned": one.is_cordoned,
        "partitions": [
            {
                "partition": f"{topic.name}-{part.partition_index}",
                "size": part.partition_size,
                "offsetLag": part.offset_lag,
                "isFuture": part.is_future_key,
            }
            for topic in sorted(one.topics, key=lambda topic: topic.name)
            if topics is None or topic.name in topics
            for part in sorted(topic.partitions, key=lambda part: part.partition_index)
        ],
    }


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} TiB"
