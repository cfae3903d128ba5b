"""`headrace topics …`: list, describe, create, alter, delete."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.base.ids import uuid_text
from headrace.cli.options import Bootstrap, CommandConfig, Json, ValidateOnly, command_group, parse_pair
from headrace.cli.output import Failures, progress, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.client.admin.configs import TOPIC, describe_configs
from headrace.client.admin.topics import PartitionInfo, TopicInfo, describe_topics
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

TIMEOUT_MS = 30_000
TOPIC_SOURCE = 1  # source of an option that is set on the topic
TOPICS_AT_ONCE = 100
_NAME = re.compile(r"[A-Za-z0-9._-]+\Z")

app = command_group()

Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="Topic names, or patterns such as 'orders.*|bills'.")
]
NewNames = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Topic names.")]
MoreNames = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="Same as NAME; may be repeated.")]
ExcludeInternal = Annotated[
    bool, typer.Option("--exclude-internal", help="Leave out internal topics such as __consumer_offsets.")
]
IfExists = Annotated[bool, typer.Option("--if-exists", help="Ignore topics that do not exist.")]


@app.command("list")
def list_(
    names: Names = None,
    topic: MoreNames = None,
    exclude_internal: ExcludeInternal = False,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """List topics with their numbers of partitions and replicas."""
    patterns = [*(names or []), *(topic or [])]

    async def work(cluster: Cluster) -> list[TopicInfo]:
        return await describe_topics(cluster, None)

    found = select_topics(with_cluster(Target(bootstrap_server, command_config), work), patterns, exclude_internal)
    if json:
        show_json([_as_json(one) for one in found])
        return
    show_table(
        ("topic", "partitions", "replicas", "without leader", "out of sync"),
        [
            (
                one.name,
                len(one.partitions),
                max((len(partition.replicas) for partition in one.partitions), default=0),
                sum(partition.leader < 0 for partition in one.partitions) or "",
                sum(_is_under_replicated(partition) for partition in one.partitions) or "",
            )
            for one in found
        ],
    )


@app.command()
def describe(
    names: Names = None,
    topic: MoreNames = None,
    exclude_internal: ExcludeInternal = False,
    under_replicated: Annotated[
        bool,
        typer.Option("--under-replicated-partitions", help="Show only partitions with replicas that are out of sync."),
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Show only partitions without a leader.")
    ] = False,
    with_overrides: Annotated[
        bool, typer.Option("--topics-with-overrides", help="Show only topics that override options.")
    ] = False,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Show the leaders, replicas and options of topics."""
    patterns = [*(names or []), *(topic or [])]

    async def work(cluster: Cluster) -> tuple[list[TopicInfo], list[dict[str, str | None]]]:
        exact = patterns and all(_NAME.match(text) for text in patterns)
        found = select_topics(await describe_topics(cluster, patterns if exact else None), patterns, exclude_internal)
        described = await describe_configs(cluster, [(TOPIC, one.name) for one in found])
        own = [{o.name: o.value for o in each if o.source == TOPIC_SOURCE} for each in described]
        return found, own

    found, options = with_cluster(Target(bootstrap_server, command_config), work)
    shown = []
    for one, own in zip(found, options, strict=True):
        partitions = [
            partition
            for partition in one.partitions
            if (not under_replicated or _is_under_replicated(partition)) and (not unavailable or partition.leader < 0)
        ]
        if (own or not with_overrides) and (partitions or not (under_replicated or unavailable)):
            shown.append((one._replace(partitions=partitions), own))
    if json:
        show_json([{**_as_json(one), "options": own} for one, own in shown])
        return
    for one, own in shown:
        _show(one, own)


def _show(one: TopicInfo, own: dict[str, str | None]) -> None:
    print(f"topic {one.name}  id {uuid_text(one.id)}  " + "  ".join(f"{k}={v}" for k, v in sorted(own.items())))
    columns = ("partition", "leader", "epoch", "replicas", "in sync", "offline", "eligible", "last known eligible")
    rows = [
        (
            partition.partition,
            partition.leader if partition.leader >= 0 else "none",
            partition.leader_epoch,
            _ids(partition.replicas),
            _ids(partition.isr),
            _ids(partition.offline),
            _ids(partition.eligible or []),
            _ids(partition.last_known_eligible or []),
        )
        for partition in one.partitions
    ]
    shown = len(columns) if any(row[6] or row[7] for row in rows) else len(columns) - 2
    show_table(columns[:shown], [row[:shown] for row in rows])


@app.command()
def create(
    names: NewNames = None,
    topic: MoreNames = None,
    partitions: Annotated[int, typer.Option(help="Number of partitions; -1 for the cluster's default.")] = -1,
    replication_factor: Annotated[int, typer.Option(help="Replicas per partition; -1 for the cluster's default.")] = -1,
    replica_assignment: Annotated[
        str | None, typer.Option(metavar="1:2,2:3", help="Brokers of each partition, instead of the two numbers.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set an option of the topic; may be repeated.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Ignore topics that already exist.")] = False,
    validate_only: ValidateOnly = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Create topics."""
    configs = [
        CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
        for name, value in (parse_pair("--config", text) for text in config or [])
    ]
    assignments = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
        for index, brokers in enumerate(_assignment(replica_assignment))
    ]
    if assignments and (partitions != -1 or replication_factor != -1):
        raise ConfigError("--replica-assignment cannot be combined with --partitions or --replication-factor")
    requested = [
        CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=assignments,
            configs=configs,
        )
        for name in _exact(names, topic)
    ]

    async def work(cluster: Cluster) -> list[CreateTopicsResponse.CreatableTopicResult]:
        results = []
        with progress("topics", len(requested)) as done:
            for at in range(0, len(requested), TOPICS_AT_ONCE):
                some = requested[at : at + TOPICS_AT_ONCE]
                response: CreateTopicsResponse = await cluster.request(
                    CreateTopicsRequest(topics=some, timeout_ms=TIMEOUT_MS, validate_only=validate_only)
                )
                results += response.topics
                done.advance(len(some))
        return results

    failures = Failures()
    for result in with_cluster(Target(bootstrap_server, command_config), work):
        if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
            print(f"topic {result.name} already exists")
        elif not failures.found(f"topic {result.name}", result.error_code, result.error_message):
            done = "would create" if validate_only else "created"
            print(f"{done} topic {result.name} with {result.num_partitions} partition(s)")
    failures.end()


@app.command()
def alter(
    names: NewNames = None,
    topic: MoreNames = None,
    partitions: Annotated[int, typer.Option(help="New number of partitions, larger than the current one.")] = -1,
    replica_assignment: Annotated[
        str | None, typer.Option(metavar="1:2,2:3", help="Brokers of each new partition.")
    ] = None,
    if_exists: IfExists = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Add partitions to topics.

    To change options of topics, use `headrace configs alter`.
    """
    if partitions < 1:
        raise ConfigError("--partitions is required: the new number of partitions, at least 1")
    brokers = [
        CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=ids) for ids in _assignment(replica_assignment)
    ]
    requested = [
        CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=partitions, assignments=brokers or None)
        for name in _exact(names, topic)
    ]

    async def work(cluster: Cluster) -> CreatePartitionsResponse:
        response: CreatePartitionsResponse = await cluster.request(
            CreatePartitionsRequest(topics=requested, timeout_ms=TIMEOUT_MS)
        )
        return response

    failures = Failures()
    for result in with_cluster(Target(bootstrap_server, command_config), work).results:
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and if_exists:
            print(f"topic {result.name} does not exist")
        elif not failures.found(f"topic {result.name}", result.error_code, result.error_message):
            print(f"topic {result.name} now has {partitions} partition(s)")
    failures.end()


@app.command()
def delete(
    names: Names = None,
    topic: MoreNames = None,
    if_exists: IfExists = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Delete topics and all their records."""
    patterns = [*(names or []), *(topic or [])]
    if not patterns:
        raise ConfigError("name at least one topic")

    async def work(cluster: Cluster) -> list[DeleteTopicsResponse.DeletableTopicResult]:
        chosen = patterns
        if not all(_NAME.match(text) for text in patterns):
            chosen = [one.name for one in select_topics(await describe_topics(cluster, None), patterns, False)]
        by_name = (await cluster.any_broker()).version_for(DeleteTopicsRequest) < 6
        results = []
        with progress("topics", len(chosen)) as done:
            for at in range(0, len(chosen), TOPICS_AT_ONCE):
                some = chosen[at : at + TOPICS_AT_ONCE]
                request = DeleteTopicsRequest(timeout_ms=TIMEOUT_MS)
                if by_name:
                    request.topic_names = some
                else:
                    request.topics = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in some]
                response: DeleteTopicsResponse = await cluster.request(request)
                results += response.responses
                done.advance(len(some))
        return results

    failures = Failures()
    for result in with_cluster(Target(bootstrap_server, command_config), work):
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and if_exists:
            print(f"topic {result.name} does not exist")
        elif not failures.found(f"topic {result.name}", result.error_code, result.error_message):
            print(f"deleted topic {result.name}")
    failures.end()


def _exact(names: list[str] | None, topic: list[str] | None) -> list[str]:
    found = [*(names or []), *(topic or [])]
    if not found:
        raise ConfigError("name at least one topic")
    return found


def select_topics(topics: list[TopicInfo], patterns: list[str], exclude_internal: bool) -> list[TopicInfo]:
    """Return the topics that match a name or pattern. Raise KafkaError for a name that does not exist.

    A text with characters that are not allowed in topic names is a pattern.
    """
    chosen = topics
    if patterns:
        known = {one.name for one in topics}
        for text in patterns:
            if _NAME.match(text) and text not in known:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {text}")
        chosen = [one for one in topics if any(_fits(text, one.name) for text in patterns)]
    return [one for one in chosen if not (exclude_internal and one.internal)]


def _fits(pattern: str, name: str) -> bool:
    if _NAME.match(pattern):
        return pattern == name
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        raise ConfigError(f"{pattern!r} is neither a name nor a pattern: {error}") from error


def _assignment(text: str | None) -> list[list[int]]:
    """Parse `1:2,2:3` as the brokers of each partition."""
    if text is None:
        return []
    try:
        return [[int(broker) for broker in part.split(":")] for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--replica-assignment {text!r}: expected broker ids such as 1:2,2:3") from None


def _is_under_replicated(partition: PartitionInfo) -> bool:
    return len(partition.isr) < len(partition.replicas)


def _ids(nodes: list[int]) -> str:
    return ",".join(map(str, nodes))


def _as_json(topic: TopicInfo) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": uuid_text(topic.id),
        "internal": topic.internal,
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": partition.replicas,
                "isr": partition.isr,
                "offline": partition.offline,
                "eligible_leader_replicas": partition.eligible,
                "last_known_eligible": partition.last_known_eligible,
            }
            for partition in topic.partitions
        ],
    }
