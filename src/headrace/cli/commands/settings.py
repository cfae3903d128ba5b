"""`headrace settings`: every option of a node, with its type, default, allowed values and meaning.

It also says whether the option can be changed while the node runs.
"""

from __future__ import annotations

import os
import textwrap
from typing import Annotated, Any

import typer

from headrace.base.errors import ConfigError
from headrace.broker.dynamic_options import CLUSTER_WIDE, FIXED, PER_BROKER
from headrace.cli.options import Config, Json, SettingFlags, Strict, verb
from headrace.cli.output import show_json, show_table
from headrace.metadata.layers import without_listener
from headrace.node.listener_options import PREFIX as LISTENER_PREFIX
from headrace.node.setting_sources import variable_name
from headrace.node.settings import ALL_OPTIONS, SINGLE_NODE, Settings, read_settings
from headrace.options.table import Option, Value

HIDDEN = "(hidden)"
SINGLE_NODE_HEAD = """\
# One node that is broker and controller, for this machine only; `headrace serve --config` takes it.
# `headrace settings` lists all options, `headrace settings NAME` explains one.
"""
_COMMENTS = {
    "process.roles": "who this is",
    "listeners": "its doors; to be reached from elsewhere: PLAINTEXT://:9092, and advertised.listeners with a name of this machine",
    "log.dirs": "where data is kept; several directories with commas between",
    "offsets.topic.replication.factor": "internal topics have one replica, as there is one node",
}

app = verb()


@app.command()
def settings(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="explain this one; else a list of all")] = None,
    config: Config = None,
    flags: SettingFlags = None,
    strict: Strict = False,
    values: Annotated[
        bool, typer.Option("--values", help="what a node started here, with these options, would have, and from where")
    ] = False,
    single_node: Annotated[
        bool, typer.Option("--single-node", help="write a server.properties for one node, and nothing else")
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
            ("option", "type", "default", "allowed", "changes", "meaning"),
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


def changes(option: str) -> str:
    """Return how the option can be changed at runtime, in Kafka's words."""
    if option in FIXED:
        return "read-only"
    return "per-broker" if option in PER_BROKER else "cluster-wide" if option in CLUSTER_WIDE else "read-only"


def _known(name: str) -> Option:
    option = ALL_OPTIONS.get(without_listener(name) if name.startswith(LISTENER_PREFIX) else name)
    if option is None:
        raise ConfigError(f"{name} is no known option{ALL_OPTIONS.suggestion(name)}")
    return option


def _describe(option: Option, given: Settings | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": option.name,
        "type": option.kind.name.lower(),
        "default": option.text(option.default),
        "allowed": option.allowed,
        "changes": changes(option.name),
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
        ("changes", "changes"), ("environment", "environment"), ("value", "value"), ("from", "from"),
    ):  # fmt: skip
        if row.get(key) is not None:
            text = f"{label + ': ' if label else ''}{row[key]}"
            print(textwrap.fill(text, 110, initial_indent="  ", subsequent_indent="    "))
