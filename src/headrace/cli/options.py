"""Options that commands share, and constructors for their typer apps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import ConfigError
from headrace.options.table import suggestion


def command_group() -> typer.Typer:
    """Return the app of a module with several commands: `headrace topics list`."""
    return typer.Typer(
        add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def single_command() -> typer.Typer:
    """Return the app of a module with a single command: `headrace serve`."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


Bootstrap = Annotated[
    str | None,
    typer.Option(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT,…",
        help="Brokers to connect to first. Defaults to bootstrap.servers of --command-config, then to localhost:9092.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Properties file of the client, with Kafka's names: security.protocol, sasl.jaas.config, ssl.truststore.location and others.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ValidateOnly = Annotated[
    bool, typer.Option("--validate-only", help="Check whether the change is possible without making it.")
]
GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="Group id.")]
# A topic with partitions, for `reset_offsets.parse_topics`.
PARTITIONS_OPTION = typer.Option(
    metavar="NAME[:0,2]", help="Topic, with its partitions if not all of them; may be repeated."
)
SettingFlags = Annotated[
    list[str] | None,
    typer.Option("-c", "--set", metavar="NAME=VALUE", help="Set an option of the node; may be repeated."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Properties file of the node (server.properties). Defaults to a single node on localhost:9092.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Treat unknown option names as errors instead of warnings.")]


def parse_pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"{option} {text!r}: expected name=value")
    return name.strip(), value


def check_partition(topic: str, partition: int | None, known: Sequence[int]) -> None:
    """Raise ConfigError if --partition is given and the topic has no such partition."""
    if partition is not None and partition not in known:
        raise ConfigError(f"--partition {partition}: {topic} has partitions 0 to {len(known) - 1}")


def refuse_unset(entity: str, names: Sequence[str], own: Collection[str], known: Collection[str]) -> None:
    """Raise ConfigError for all names that are not in `own`, the options set on the entity."""
    unset = [
        f"{name} is not set" if name in known else f"{name} is not a known option{suggestion(name, known)}"
        for name in names
        if name not in own
    ]
    if unset:
        raise ConfigError(f"--delete-config of {entity}: {'; '.join(unset)}")
