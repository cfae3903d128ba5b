"""Options that commands share, and constructors for their typer apps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import ConfigError
from headrace.options.table import suggestion


def noun() -> typer.Typer:
    """Return the app of a module with several commands: `headrace topics list`."""
    return typer.Typer(
        add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def verb() -> typer.Typer:
    """Return the app of a module with a single command: `headrace serve`."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


Bootstrap = Annotated[
    str | None,
    typer.Option(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT,…",
        help="any brokers of the cluster; else bootstrap.servers of --command-config, else localhost:9092",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="properties of the client in Kafka's names: security.protocol, sasl.jaas.config, ssl.truststore.location …",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table")]
SettingFlags = Annotated[
    list[str] | None, typer.Option("-c", "--set", metavar="NAME=VALUE", help="a setting, in Kafka's names")
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="a server.properties; else a single node on localhost:9092"),
]
Strict = Annotated[bool, typer.Option("--strict", help="a name that is no option is an error, not a warning")]


def pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"{option} {text!r}: expected name=value")
    return name.strip(), value


def refuse_unset(entity: str, names: Sequence[str], own: Collection[str], known: Collection[str]) -> None:
    """Raise ConfigError for all names that are not in `own`, the options set on the entity."""
    unset = [
        f"{name} is not set here" if name in known else f"{name} is no known option{suggestion(name, known)}"
        for name in names
        if name not in own
    ]
    if unset:
        raise ConfigError(f"--delete-config of {entity}: {'; '.join(unset)}")
