"""Derives a node's id, directories and listeners from its options, and validates them. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from headrace.base.errors import ConfigError
from headrace.base.ids import NodeId
from headrace.broker.channels.controller_discovery import parse_voters
from headrace.client.wire.node_link import Address
from headrace.client.wire.opening import addresses
from headrace.node.configuration.listener_addresses import (
    ListenerAddress,
    check_advertised,
    parse_addresses,
    protocols_of,
)
from headrace.node.configuration.problems import SettingProblems
from headrace.options.table import Value

log = logging.getLogger(__name__)


class Listeners(NamedTuple):
    broker: tuple[ListenerAddress, ...]
    controller: tuple[ListenerAddress, ...]
    advertised: tuple[ListenerAddress, ...]
    protocols: Mapping[str, str]  # security protocol by listener name


BROKER, CONTROLLER = "broker", "controller"


def find_roles(values: Mapping[str, Value]) -> frozenset[str]:
    roles = _list(values, "process.roles")
    if not roles or len(set(roles)) != len(roles) or not {BROKER, CONTROLLER}.issuperset(roles):
        given = f"process.roles={','.join(roles)}" if roles else "process.roles is missing"
        raise ConfigError(f"{given}: a node is broker, controller, or broker,controller")
    return frozenset(roles)


def resolve_listeners(
    values: Mapping[str, Value], explicit: Collection[str], roles: frozenset[str], problems: SettingProblems
) -> Listeners:
    listeners: tuple[ListenerAddress, ...] = ()
    given: tuple[ListenerAddress, ...] = ()
    protocols: dict[str, str] = {}
    with problems.about("listeners"):
        listeners = parse_addresses("listeners", _list(values, "listeners"))
    with problems.about("advertised.listeners"):
        given = parse_addresses("advertised.listeners", _list(values, "advertised.listeners"))
    names = [listener.name for listener in listeners]
    controller_names: list[str] = []
    with problems.about("controller.listener.names", "listeners", "process.roles"):
        controller_names = _controller_names(values, names, roles)
    broker = tuple(listener for listener in listeners if listener.name not in controller_names)
    controller = tuple(listener for listener in listeners if listener.name in controller_names)
    if BROKER in roles and not broker:
        problems.add(
            "listeners: a broker needs a listener that controller.listener.names does not name",
            "listeners",
            "controller.listener.names",
        )
    if BROKER not in roles and broker:
        problems.add(
            f"listeners: a node that is only a controller has no listener for clients, but {broker[0].name} is not in"
            " controller.listener.names",
            "listeners",
            "controller.listener.names",
        )
    advertised: tuple[ListenerAddress, ...] = ()
    if BROKER in roles:
        with problems.about("inter.broker.listener.name", "listeners"):
            _check_inter_broker(values, [listener.name for listener in broker])
        chosen = tuple(address for address in given if address.name not in controller_names)
        advertised = chosen or broker
        with problems.about("advertised.listeners", "listeners"):
            check_advertised(advertised, names, explicit=bool(chosen))
    with problems.about("listener.security.protocol.map", "listeners"):
        protocols = protocols_of(values, names, controller_names, explicit="listener.security.protocol.map" in explicit)
    return Listeners(broker, controller, advertised, protocols)


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


def find_voters(
    values: Mapping[str, Value], node_id: NodeId, roles: frozenset[str], listeners: Sequence[ListenerAddress]
) -> dict[NodeId, Address]:
    """Return the addresses of the static voters, by node id; none if they are in the metadata log."""
    texts = _list(values, "controller.quorum.voters")
    voters = parse_voters(texts)
    shown = f"controller.quorum.voters={','.join(texts)}"
    if len(voters) != len(texts):
        raise ConfigError(f"{shown}: each node id may appear only once")
    if voters and CONTROLLER in roles and node_id not in voters:
        raise ConfigError(f"{shown}: this node ({node_id}) is a controller and must be one of the voters")
    if voters and CONTROLLER not in roles and node_id in voters:
        raise ConfigError(f"{shown}: this node ({node_id}) is only a broker and must not be one of the voters")
    if len(voters) > 1 and CONTROLLER in roles and not listeners:
        raise ConfigError(f"{shown}: the other controllers need a listener that controller.listener.names names")
    if CONTROLLER not in roles and not voters and not _list(values, "controller.quorum.bootstrap.servers"):
        raise ConfigError(
            "a node that is only a broker must know its controllers: set controller.quorum.voters or"
            " controller.quorum.bootstrap.servers"
        )
    return voters


def find_bootstrap_controllers(values: Mapping[str, Value]) -> tuple[Address, ...]:
    """Return the addresses of controller.quorum.bootstrap.servers."""
    texts = _list(values, "controller.quorum.bootstrap.servers")
    found = addresses(",".join(texts), "controller.quorum.bootstrap.servers") if texts else []
    return tuple(Address(*address) for address in found)


def _controller_names(values: Mapping[str, Value], names: Sequence[str], roles: frozenset[str]) -> list[str]:
    """Return the controller listeners that are among this node's listeners.

    Kafka requires at least one of a controller; a controller in the same process as its only broker needs none.
    """
    requested = [name.upper() for name in _list(values, "controller.listener.names")]
    own = [name for name in requested if name in names]
    if CONTROLLER not in roles:
        if not requested:
            raise ConfigError(
                "process.roles=broker: controller.listener.names must name the listener by which this broker reaches controllers"
            )
        if own:
            raise ConfigError(
                f"listeners: {own[0]} is a controller listener, which a node that is only a broker has not"
            )
    elif BROKER not in roles and not own:
        raise ConfigError("controller.listener.names must name one of the listeners of this controller")
    else:
        for name in requested if names else ():
            if name not in names:
                log.warning(
                    "controller.listener.names: %s is not among listeners (%s), so the controller of this node can be"
                    " reached only from inside the process; to make it reachable, add %s://localhost:9093 (or another free port)",
                    name,
                    ",".join(names),
                    name,
                )
    return own


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
