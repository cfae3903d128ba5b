"""`headrace settings`: every option of a node, with its type, default, allowed values and meaning.

The update mode of an option is the way in which it can be changed while the node runs.
"""

from __future__ import annotations

import os
import textwrap
from typing import Annotated, Any

import typer

from headrace.base.errors import ConfigError
from headrace.broker.dynamic_options import CLUSTER_WIDE, FIXED, PER_BROKER
from headrace.cli.options import Config, Json, SettingFlags, Strict, single_command
from headrace.cli.output import show_json, show_table
from headrace.metadata.layers import without_listener
from headrace.node.configuration.listener_options import PREFIX as LISTENER_PREFIX
from headrace.node.configuration.settings import ALL_OPTIONS, SINGLE_NODE, Settings, read_settings
from headrace.node.configuration.sources import variable_name
from headrace.options.table import Option, Value

HIDDEN = "(hidden)"
SINGLE_NODE_HEAD = """\
# A single node that is both broker and controller, reachable from this machine only. Start it with `headrace serve --config FILE`.
# `headrace settings` lists all options, `headrace settings NAME` explains one.
"""
_COMMENTS = {
    "process.roles": "the identity and roles of the node",
    "listeners": "addresses to listen on; for other machines: PLAINTEXT://:9092, and advertised.listeners with this machine's name",
    "log.dirs": "data directories, separated by commas",
    "offsets.topic.replication.factor": "internal topics have one replica, because there is only one node",
}

app = single_command()


@app.command()
def settings(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Option to explain. Defaults to a list of all options.")
    ] = None,
    config: Config = None,
    flags: SettingFlags = None,
    strict: Strict = False,
    values: Annotated[
        bool, typer.Option("--values", help="Show the values that a node started here would have, and their origins.")
    ] = False,
    single_node: Annotated[
        bool, typer.Option("--single-node", help="Print a server.properties for a single node, and exit.")
    ] = False,
    json: Json = False,
) -> None:
    """Show every option of a node: its meaning, allowed values and current value."""
    if single_node:
        print(single_node_file(), end="")
        return
    chosen = [_known(name)] if name is not None else [ALL_OPTIONS[each] for each in sorted(ALL_OPTIONS)]
    given = None
    if values or config is not None or flags:
        given = read_settings(config, flags or [], os.environ, strict=strict)
    rows = [_describe(option, given) for option in chosen]
    if given is not None:
        rows += _of_listeners(given, name)
    if json:
        show_json(rows[0] if name is not None else rows)
    elif name is not None:
        _explain(rows[0])
    elif given is not None:
        show_table(("option", "value", "from"), [(one["name"], one["value"], one["from"]) for one in rows])
    else:
        show_table(
            ("option", "type", "default", "allowed", "update mode", "meaning"),
            [
                (
                    one["name"],
                    one["type"],
                    one["default"],
                    one["allowed"],
                    one["changes"],
                    one["meaning"] + (f" [no effect: {one['no_effect']}]" if one["no_effect"] else ""),
                )
                for one in rows
            ],
        )


def single_node_file() -> str:
    lines = [SINGLE_NODE_HEAD]
    for option, text in SINGLE_NODE.items():
        if option in _COMMENTS:
            lines.append(f"\n# {_COMMENTS[option]}\n")
        lines.append(f"{option}={text}\n")
    return "".join(lines)


def update_mode(option: str) -> str:
    """Return the option's update mode in Kafka's terms: read-only, per-broker or cluster-wide."""
    if option in FIXED:
        return "read-only"
    return "per-broker" if option in PER_BROKER else "cluster-wide" if option in CLUSTER_WIDE else "read-only"


def _known(name: str) -> Option:
    option = ALL_OPTIONS.get(without_listener(name) if name.startswith(LISTENER_PREFIX) else name)
    if option is None:
        raise ConfigError(f"{name} is not a known option{ALL_OPTIONS.suggestion(name)}")
    return option


def _describe(option: Option, given: Settings | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": option.name,
        "type": option.kind.name.lower(),
        "default": option.text(option.default),
        "allowed": option.allowed,
        "changes": update_mode(option.name),
        "meaning": option.meaning,
        "no_effect": option.unused or option.refused,
        "environment": variable_name(option.name),
    }
    if given is not None:
        row["value"] = _shown(option, given.values[option.name])
        row["from"] = given.origins.get(option.name, "single node" if option.name in given.explicit else "default")
    return row


def _of_listeners(given: Settings, name: str | None) -> list[dict[str, Any]]:
    rows = []
    for full, value in sorted(given.listener_values.items()):
        base = next(option for each, option in ALL_OPTIONS.items() if full.endswith("." + each))
        if name in (None, full):
            rows.append({"name": full, "value": _shown(base, value), "from": given.origins.get(full, "")})
    return rows


def _shown(option: Option, value: Value) -> str | None:
    return HIDDEN if option.is_secret and value is not None else option.text(value)


def _explain(row: dict[str, Any]) -> None:
    print(row["name"])
    for label, key in (
        ("", "meaning"), ("no effect", "no_effect"), ("type", "type"), ("default", "default"), ("allowed", "allowed"),
        ("update mode", "changes"), ("environment", "environment"), ("value", "value"), ("from", "from"),
    ):  # fmt: skip
        if row.get(key) is not None:
            text = f"{label + ': ' if label else ''}{row[key]}"
            print(textwrap.fill(text, 110, initial_indent="  ", subsequent_indent="    "))
