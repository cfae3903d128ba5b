"""Derives a node's id, directories and listeners from its options, and validates them. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from headrace.base.errors import ConfigError
from headrace.base.ids import NodeId
from headrace.node.listener_addresses import ListenerAddress, check_advertised, parse_addresses, protocols_of
from headrace.node.setting_problems import SettingProblems
from headrace.options.table import Value

log = logging.getLogger(__name__)


class Listeners(NamedTuple):
    broker: tuple[ListenerAddress, ...]
    controller: tuple[ListenerAddress, ...]
    advertised: tuple[ListenerAddress, ...]
    protocols: Mapping[str, str]  # security protocol by listener name


def check_roles(values: Mapping[str, Value]) -> None:
    roles = _list(values, "process.roles")
    if sorted(roles) != ["broker", "controller"]:
        raise ConfigError(
            f"process.roles={','.join(roles)} is not supported by this version: a node is broker,controller (one combined node)"
        )


def resolve_listeners(values: Mapping[str, Value], explicit: Collection[str], problems: SettingProblems) -> Listeners:
    listeners: tuple[ListenerAddress, ...] = ()
    given: tuple[ListenerAddress, ...] = ()
    protocols: dict[str, str] = {}
    with problems.about("listeners"):
        listeners = parse_addresses("listeners", _list(values, "listeners"))
    with problems.about("advertised.listeners"):
        given = parse_addresses("advertised.listeners", _list(values, "advertised.listeners"))
    names = [listener.name for listener in listeners]
    controller_names = _controller_names(values, names)
    broker = tuple(listener for listener in listeners if listener.name not in controller_names)
    if not broker:
        problems.add(
            "listeners: a broker needs a listener that controller.listener.names does not name",
            "listeners",
            "controller.listener.names",
        )
    with problems.about("inter.broker.listener.name", "listeners"):
        _check_inter_broker(values, [listener.name for listener in broker])
    chosen = tuple(address for address in given if address.name not in controller_names)
    with problems.about("advertised.listeners", "listeners"):
        check_advertised(chosen or broker, names, explicit=bool(chosen))
    with problems.about("listener.security.protocol.map", "listeners"):
        protocols = protocols_of(values, names, controller_names, explicit="listener.security.protocol.map" in explicit)
    controller = tuple(listener for listener in listeners if listener.name in controller_names)
    return Listeners(broker, controller, chosen or broker, protocols)


def find_node_id(values: Mapping[str, Value]) -> NodeId:
    node_id, old = values["node.id"], values["broker.id"]
    if node_id is None:
        node_id = old
    elif isinstance(old, int) and old not in (-1, node_id):
        raise ConfigError(f"broker.id={old} and node.id={node_id} are two names of the same option: set only node.id")
    if not isinstance(node_id, int) or node_id < 0:
        raise ConfigError("node.id must be set to a number of at least 0")
    return NodeId(node_id)


def find_directories(values: Mapping[str, Value]) -> tuple[tuple[str, ...], str]:
    dirs = tuple(path.rstrip("/") or "/" for path in _list(values, "log.dirs") or _list(values, "log.dir"))
    if not dirs:
        raise ConfigError("log.dirs must name at least one directory")
    if len(set(dirs)) != len(dirs):
        raise ConfigError(f"log.dirs: each directory may appear only once, got {','.join(dirs)}")
    chosen = values["metadata.log.dir"]
    metadata_dir = (chosen.rstrip("/") or "/") if isinstance(chosen, str) and chosen else dirs[0]
    if metadata_dir not in dirs:
        raise ConfigError(f"metadata.log.dir={metadata_dir} must be one of log.dirs for a combined node")
    return dirs, metadata_dir


def check_voters(values: Mapping[str, Value], node_id: int) -> None:
    voters = _list(values, "controller.quorum.voters")
    ids = []
    for voter in voters:
        text, at, _ = voter.partition("@")
        if not at or not text.isdigit():
            raise ConfigError(f"controller.quorum.voters: {voter!r} is not of the form id@host:port")
        ids.append(int(text))
    if ids and ids != [node_id]:
        raise ConfigError(
            f"controller.quorum.voters={','.join(voters)}: this version runs a quorum of one, this node ({node_id})"
        )


def _controller_names(values: Mapping[str, Value], names: Sequence[str]) -> list[str]:
    """Return the controller listeners that are among this node's listeners.

    Kafka requires at least one; a controller in the same process needs none.
    """
    requested = [name.upper() for name in _list(values, "controller.listener.names")]
    for name in requested if names else ():
        if name not in names:
            log.warning(
                "controller.listener.names: %s is not among listeners (%s), so the controller of this node can be"
                " reached only from inside the process; to make it reachable, add %s://localhost:9093 (or another free port)",
                name,
                ",".join(names),
                name,
            )
    return [name for name in requested if name in names]


def _check_inter_broker(values: Mapping[str, Value], names: Sequence[str]) -> None:
    name = values["inter.broker.listener.name"]
    if isinstance(name, str) and name and name.upper() not in names:
        raise ConfigError(
            f"inter.broker.listener.name={name}: it must be one of the listeners of the broker ({','.join(names)})"
        )


def _list(values: Mapping[str, Value], name: str) -> list[str]:
    value = values[name]
    if value is None:
        return []
    assert isinstance(value, list), f"{name} is {value!r}"
    return value
