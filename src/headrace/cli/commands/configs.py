"""`headrace configs …`: options of topics, brokers, loggers, groups and client metrics.

For users, clients and addresses it handles quotas and passwords.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from headrace.base.errors import ConfigError
from headrace.cli.commands import quotas
from headrace.cli.options import Bootstrap, CommandConfig, Json, ValidateOnly, command_group, refuse_unset
from headrace.cli.output import show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.client.admin.configs import (
    BROKER,
    CLIENT_METRICS,
    GROUP,
    LOGGER,
    SOURCES,
    TOPIC,
    OptionInfo,
    alter_configs,
    describe_configs,
    list_resources,
)
from headrace.client.wire.cluster import Cluster
from headrace.node.configuration.sources import read_properties

RESOURCES = {
    "topics": TOPIC, "brokers": BROKER, "broker-loggers": LOGGER, "client-metrics": CLIENT_METRICS, "groups": GROUP,
}  # fmt: skip
QUOTA_TYPES = {"users": "user", "clients": "client-id", "ips": "ip"}
TYPES = (*RESOURCES, *QUOTA_TYPES)
# Sources of values that were set explicitly, by type; for loggers, everything is shown.
_OWN = {TOPIC: {1}, BROKER: {2, 3}, CLIENT_METRICS: {7}, GROUP: {8}, LOGGER: {6}}

app = command_group()


class Entity(NamedTuple):
    """An entity by type and name. None stands for all entities, an empty name for the default (brokers and quotas)."""

    type: str
    name: str | None


EntityType = Annotated[
    list[str] | None,
    typer.Option(
        "--entity-type",
        metavar="TYPE",
        help=f"Type of the entity: {', '.join(TYPES)}; users and clients may be combined.",
    ),
]
EntityName = Annotated[
    list[str] | None,
    typer.Option(
        "--entity-name",
        metavar="NAME",
        help="Name of the entity; each belongs to the --entity-type at the same position.",
    ),
]
EntityDefault = Annotated[bool, typer.Option("--entity-default", help="The default for all entities of the type.")]


def _shorthand(flag: str, what: str) -> Any:
    return typer.Option(flag, metavar="NAME", help=f"Short for --entity-type {what} --entity-name NAME.")


Topic = Annotated[str | None, _shorthand("--topic", "topics")]
Broker = Annotated[str | None, _shorthand("--broker", "brokers")]
BrokerDefaults = Annotated[
    bool, typer.Option("--broker-defaults", help="Short for --entity-type brokers --entity-default.")
]
BrokerLogger = Annotated[str | None, _shorthand("--broker-logger", "broker-loggers")]
User = Annotated[str | None, _shorthand("--user", "users")]
UserDefaults = Annotated[bool, typer.Option("--user-defaults", help="Short for --entity-type users --entity-default.")]
Client = Annotated[str | None, _shorthand("--client", "clients")]
ClientDefaults = Annotated[
    bool, typer.Option("--client-defaults", help="Short for --entity-type clients --entity-default.")
]
Ip = Annotated[str | None, _shorthand("--ip", "ips")]
IpDefaults = Annotated[bool, typer.Option("--ip-defaults", help="Short for --entity-type ips --entity-default.")]
Group = Annotated[str | None, _shorthand("--group", "groups")]
Metrics = Annotated[str | None, _shorthand("--client-metrics", "client-metrics")]


@app.command()
def describe(
    entity_type: EntityType = None,
    entity_name: EntityName = None,
    entity_default: EntityDefault = False,
    topic: Topic = None,
    broker: Broker = None,
    broker_defaults: BrokerDefaults = False,
    broker_logger: BrokerLogger = None,
    user: User = None,
    user_defaults: UserDefaults = False,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    group: Group = None,
    client_metrics: Metrics = None,
    all: Annotated[bool, typer.Option("--all", help="Show all options, not only those set on the entity.")] = False,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Show options and the sources of their values.

    For users, clients and addresses, show quotas and SCRAM mechanisms.
    """
    shorts = _shorthands(
        topics=topic, brokers=broker, broker_loggers=broker_logger, users=user, clients=client, ips=ip, groups=group,
        client_metrics=client_metrics,
    )  # fmt: skip
    defaults = _defaults(brokers=broker_defaults, users=user_defaults, clients=client_defaults, ips=ip_defaults)
    entities = parse_entities(entity_type or [], entity_name or [], entity_default, [*shorts, *defaults])
    target = Target(bootstrap_server, command_config)
    if entities[0].type in QUOTA_TYPES:
        quotas.describe(target, [(QUOTA_TYPES[one.type], one.name) for one in entities], json)
        return
    kind = RESOURCES[entities[0].type]

    async def work(cluster: Cluster) -> list[tuple[str, list[OptionInfo]]]:
        names = [one.name for one in entities if one.name is not None] or await _all_names(cluster, kind)
        options = await describe_configs(cluster, [(kind, name) for name in names], synonyms=True)
        return [
            (name, [option for option in each if all or option.source in _OWN[kind]])
            for name, each in zip(names, options, strict=True)
        ]

    found = with_cluster(target, work)
    if json:
        show_json([{"type": entities[0].type, "name": name, "options": _as_json(each)} for name, each in found])
        return
    show_table(
        (entities[0].type, "option", "value", "from"),
        [
            (name or "(default)", one.name, "(hidden)" if one.secret else one.value, SOURCES.get(one.source, "?"))
            for name, each in found
            for one in sorted(each)
        ],
    )


@app.command()
def alter(
    add_config: Annotated[
        list[str] | None,
        typer.Option("--add-config", metavar="A=1,B=[2,3]", help="Options to set; write lists in brackets."),
    ] = None,
    add_config_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Properties file with options to set.")
    ] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="A,B", help="Options to reset to their defaults.")
    ] = None,
    validate_only: ValidateOnly = False,
    entity_type: EntityType = None,
    entity_name: EntityName = None,
    entity_default: EntityDefault = False,
    topic: Topic = None,
    broker: Broker = None,
    broker_defaults: BrokerDefaults = False,
    broker_logger: BrokerLogger = None,
    user: User = None,
    user_defaults: UserDefaults = False,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    group: Group = None,
    client_metrics: Metrics = None,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Set options, or reset them to their defaults."""
    shorts = _shorthands(
        topics=topic, brokers=broker, broker_loggers=broker_logger, users=user, clients=client, ips=ip, groups=group,
        client_metrics=client_metrics,
    )  # fmt: skip
    defaults = _defaults(brokers=broker_defaults, users=user_defaults, clients=client_defaults, ips=ip_defaults)
    entities = parse_entities(entity_type or [], entity_name or [], entity_default, [*shorts, *defaults])
    add, delete = _changes(add_config or [], add_config_file, delete_config or [])
    target = Target(bootstrap_server, command_config)
    if any(one.name is None for one in entities):
        raise ConfigError(f"{entities[0].type}: --entity-name or --entity-default is required")
    if entities[0].type in QUOTA_TYPES:
        quotas.alter(target, [(QUOTA_TYPES[one.type], one.name or "") for one in entities], add, delete, validate_only)
    else:
        kind, name = RESOURCES[entities[0].type], entities[0].name or ""

        async def work(cluster: Cluster) -> None:
            if delete:
                await _check_deletions(cluster, entities[0], delete)
            await alter_configs(cluster, (kind, name), add, delete, validate_only=validate_only)

        with_cluster(target, work)
    shown = " of ".join(f"{one.type} {one.name or '(default)'}" for one in entities)
    print(f"{'would change' if validate_only else 'changed'} {', '.join([*add, *delete])} of {shown}")


def _changes(
    additions: Sequence[str], additions_file: Path | None, deletions: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the options to set, with their values, and those to reset. Raise ConfigError if there are none."""
    add = read_properties(additions_file) if additions_file is not None else {}
    for text in additions:
        add |= parse_additions(text)
    delete = [name.strip() for text in deletions for name in text.split(",") if name.strip()]
    if not add and not delete:
        raise ConfigError("nothing to change: give --add-config, --add-config-file or --delete-config")
    return add, delete


async def _check_deletions(cluster: Cluster, entity: Entity, names: Sequence[str]) -> None:
    """Raise ConfigError for an option that is not set on the entity: brokers silently accept such a deletion."""
    kind = RESOURCES[entity.type]
    [described] = await describe_configs(cluster, [(kind, entity.name or "")])
    own = {option.name for option in described if option.source in _OWN[kind]}
    known = {option.name for option in described}
    if kind == BROKER:
        from headrace.options.node_options import NODE_OPTIONS  # a large table, needed only here

        known |= NODE_OPTIONS.keys()
    refuse_unset(f"{entity.type} {entity.name or '(default)'}", names, own, known)


def parse_entities(types: Sequence[str], names: Sequence[str], default: bool, short: list[Entity]) -> list[Entity]:
    """Return one entity, or a user and a client. Each name belongs to the type at the same position.

    Raise ConfigError for any other combination.
    """
    for kind in types:
        if kind not in TYPES:
            raise ConfigError(f"--entity-type {kind!r}: expected {', '.join(TYPES)}")
    entities = [Entity(kind, None) for kind in types]
    if len(names) + default > len(entities) and entities:
        raise ConfigError("--entity-name and --entity-default: at most one for each --entity-type")
    for index, name in enumerate(names):
        if not entities:
            raise ConfigError(f"--entity-name {name}: --entity-type is required")
        entities[index] = entities[index]._replace(name=name)
    if default:
        if not entities:
            raise ConfigError("--entity-default: --entity-type is required")
        entities[len(names)] = entities[len(names)]._replace(name="")
    entities += short
    chosen = [one.type for one in entities]
    if not entities:
        raise ConfigError("name an entity: --entity-type with --entity-name, or --topic, --broker, --user …")
    if len(entities) > 1 and (sorted(chosen) != ["clients", "users"]):
        raise ConfigError(f"{' and '.join(chosen)}: only one entity at a time, except for a user and a client together")
    for one in entities:
        if one.name == "" and one.type not in ("brokers", *QUOTA_TYPES):
            raise ConfigError(f"{one.type} have no default entity; give a name")
    return sorted(entities, key=lambda one: one.type, reverse=True)  # users before clients


def parse_additions(text: str) -> dict[str, str]:
    """Parse `a=1,b=[2,3],c=4`, where commas inside brackets belong to the value."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    if depth != 0:
        raise ConfigError("--add-config: a bracket is not closed")
    found: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--add-config: {name.strip()!r} has no value; expected name=value")
        value = value.strip()
        found[name.strip()] = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    return found


def _shorthands(**names: str | None) -> list[Entity]:
    return [Entity(type.replace("_", "-"), name) for type, name in names.items() if name is not None]


def _defaults(**requested: bool) -> list[Entity]:
    return [Entity(type, "") for type, chosen in requested.items() if chosen]


async def _all_names(cluster: Cluster, kind: int) -> list[str]:
    if kind == TOPIC:
        return sorted(topic.name or "" for topic in (await cluster.refresh(None)).topics)
    if kind in (BROKER, LOGGER):
        brokers = [str(broker) for broker in await cluster.brokers()]
        return [*brokers, ""] if kind == BROKER else brokers
    return await list_resources(cluster, kind)


def _as_json(options: list[OptionInfo]) -> list[dict[str, Any]]:
    return [
        {
            "name": one.name,
            "value": None if one.secret else one.value,
            "source": SOURCES.get(one.source),
            "read_only": one.read_only,
            "sensitive": one.secret,
            "synonyms": [
                {"name": name, "value": None if one.secret else value, "source": SOURCES.get(source)}
                for name, value, source in one.synonyms
            ],
        }
        for one in sorted(options)
    ]
