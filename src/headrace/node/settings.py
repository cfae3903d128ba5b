"""What a node is told: Kafka's property names, from a file, the environment and `-c name=value`, with defaults that make a single node.

A bad value stops the start with a line that names it. An unknown name, and an option that nothing here depends on, is one warning each.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from headrace.base.errors import ConfigError
from headrace.base.ids import NodeId
from headrace.base.options import Kind, Option, OptionTable, Value
from headrace.broker.node_options import NODE_OPTIONS
from headrace.metadata.image import Endpoint
from headrace.metadata.topic_options import topic_defaults
from headrace.node.former_options import what_instead
from headrace.node.listener_addresses import (
    SECURITY_PROTOCOLS,
    ListenerAddress,
    check_advertised,
    parse_addresses,
    protocols_of,
)
from headrace.node.listener_options import PREFIX as LISTENER_PREFIX
from headrace.node.listener_options import find_listener_option, parse_listener_options
from headrace.node.option_conflicts import check_conflicts, surprises
from headrace.node.setting_sources import gather

log = logging.getLogger(__name__)

OWN_OPTIONS = OptionTable(
    Option("headrace.http.listener", Kind.STRING, "localhost:9404", "host:port of /metrics and /health; empty: none"),
)
ALL_OPTIONS = OptionTable(*NODE_OPTIONS.values(), *OWN_OPTIONS.values())

# What `headrace serve` without a file means: one node that is broker and controller, for this machine only.
SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "headrace-data",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


class Settings(Struct, frozen=True):
    values: Mapping[str, Value]
    explicit: frozenset[str]
    node_id: NodeId
    log_dirs: tuple[str, ...]
    metadata_dir: str
    broker_listeners: tuple[ListenerAddress, ...]
    controller_listeners: tuple[ListenerAddress, ...]
    advertised: tuple[ListenerAddress, ...]
    protocols: Mapping[str, str]  # of each listener, by its name
    listener_values: Mapping[str, Value]
    origins: Mapping[str, str] = field(default_factory=dict)  # for each name that was set, by whom

    def number(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int), f"{name} is {value!r}"
        return value

    def flag(self, name: str) -> bool:
        return self.values[name] is True

    def text(self, name: str) -> str | None:
        value = self.values[name]
        assert value is None or isinstance(value, str), f"{name} is {value!r}"
        return value

    def texts(self, name: str) -> list[str]:
        """Return the values of an option that is a list."""
        value = self.values[name]
        assert isinstance(value, list), f"{name} is {value!r}"
        return value

    def for_listener(self, listener: str, option: str, mechanism: str | None = None) -> Value:
        """Its own value of an option, or the node's."""
        try:
            return find_listener_option(self.listener_values, listener, option, mechanism)
        except KeyError:
            return self.values[option]

    def has_listener_option(self, listener: str, option: str) -> bool:
        """Whether the listener has a value of its own."""
        return f"{LISTENER_PREFIX}{listener.lower()}.{option}" in self.listener_values

    def topic_defaults(self) -> dict[str, Value]:
        return topic_defaults(self.values)

    def static_texts(self) -> dict[str, str]:
        """What somebody set, as Kafka would print it."""
        found = {name: ALL_OPTIONS[name].text(self.values[name]) for name in sorted(self.explicit)}
        return {name: text for name, text in found.items() if text is not None}

    @property
    def host_name(self) -> str:
        return _host_name()

    def endpoints(self, bound_ports: Mapping[str, int]) -> list[Endpoint]:
        """What clients are told; port 0 means whatever port the listener got."""
        return [
            Endpoint(
                address.name,
                address.host or _host_name(),
                address.port or bound_ports[address.name],
                SECURITY_PROTOCOLS[self.protocols[address.name]],
            )
            for address in self.advertised
        ]


def read_settings(
    file: Path | None,
    overrides: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    strict: bool = False,
) -> Settings:
    """ConfigError names the first setting that cannot be used and what is allowed; with `strict` also one that nobody knows."""
    given = gather(file, environment or {}, overrides, OWN_OPTIONS)
    return make_settings(given.texts, single_node=file is None, strict=strict, origins=given.origins)


def make_settings(
    given: Mapping[str, str],
    *,
    single_node: bool,
    strict: bool = False,
    origins: Mapping[str, str] | None = None,
) -> Settings:
    origins = origins or {}
    texts = {**_single_node(given), **given} if single_node else dict(given)
    values: dict[str, Value] = {name: option.default for name, option in ALL_OPTIONS.items()}
    unknown: list[str] = []
    for name, text in texts.items():
        option = ALL_OPTIONS.get(name)
        if option is not None:
            values[name] = _parse(option, text, origins.get(name))
        elif not name.startswith(LISTENER_PREFIX):
            unknown.append(_unknown(name, origins.get(name)))
    explicit = frozenset(texts) & ALL_OPTIONS.keys()
    check_conflicts(values, explicit)
    settings = _resolve(values, explicit, texts, unknown, origins)
    if strict and unknown:
        raise ConfigError("; ".join(unknown))
    for line in unknown:
        log.warning("%s; it is not used", line)
    for name in sorted(explicit & given.keys()):
        _warn_if_unused(settings, ALL_OPTIONS[name])
    for line in surprises(values, explicit & given.keys()):
        log.warning("%s", line)
    return settings


def _single_node(given: Mapping[str, str]) -> dict[str, str]:
    defaults = dict(SINGLE_NODE)
    if "listeners" in given and "controller.listener.names" not in given:
        # Somebody chose their own doors: the controller then needs none, it lives in the same process.
        del defaults["controller.listener.names"]
    if "broker.id" in given and "node.id" not in given:
        del defaults["node.id"]
    return defaults


def _parse(option: Option, text: str, origin: str | None) -> Value:
    try:
        value = option.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{error} ({origin})" if origin else str(error)) from error
    if option.refused is not None and value not in (option.default, "", []):
        raise ConfigError(f"{option.name}: {option.refused}")
    return value


def _unknown(name: str, origin: str | None) -> str:
    shown = f"{name} ({origin})" if origin else name
    instead = what_instead(name)
    if instead is not None:
        return f"{shown} is no option of Kafka any more: {instead}"
    return f"{shown} is no known option{ALL_OPTIONS.suggestion(name)}"


def _warn_if_unused(settings: Settings, option: Option) -> None:
    value = settings.values[option.name]
    if option.unused is None or value in (option.default, *option.anyway, "", []):
        return
    if option.name == "inter.broker.listener.name" and len(settings.broker_listeners) == 1:
        return  # there is no other that it could be
    log.warning("%s has no effect: %s", option.name, option.unused)


def _resolve(
    values: dict[str, Value],
    explicit: frozenset[str],
    texts: Mapping[str, str],
    unknown: list[str],
    origins: Mapping[str, str],
) -> Settings:
    roles = _list(values, "process.roles")
    if sorted(roles) != ["broker", "controller"]:
        raise ConfigError(
            f"process.roles={','.join(roles)} is not supported by this version: a node is broker,controller (one combined node)"
        )
    node_id = _node_id(values)
    dirs, metadata_dir = _directories(values)
    listeners = parse_addresses("listeners", _list(values, "listeners"))
    names = [listener.name for listener in listeners]
    controller_names = _controller_names(values, names)
    broker_listeners = tuple(listener for listener in listeners if listener.name not in controller_names)
    if not broker_listeners:
        raise ConfigError("listeners: a broker needs a listener that controller.listener.names does not name")
    _check_voters(values, node_id)
    _check_inter_broker(values, [listener.name for listener in broker_listeners])
    given = parse_addresses("advertised.listeners", _list(values, "advertised.listeners"))
    advertised = tuple(address for address in given if address.name not in controller_names)
    return Settings(
        values=values,
        explicit=explicit,
        node_id=node_id,
        log_dirs=dirs,
        metadata_dir=metadata_dir,
        broker_listeners=broker_listeners,
        controller_listeners=tuple(listener for listener in listeners if listener.name in controller_names),
        advertised=check_advertised(advertised or broker_listeners, names, explicit=bool(advertised)),
        protocols=protocols_of(values, names, controller_names, explicit="listener.security.protocol.map" in explicit),
        listener_values=parse_listener_options(texts, ALL_OPTIONS, names, unknown.append),
        origins=origins,
    )


def _node_id(values: Mapping[str, Value]) -> NodeId:
    node_id, old = values["node.id"], values["broker.id"]
    if node_id is None:
        node_id = old
    elif isinstance(old, int) and old not in (-1, node_id):
        raise ConfigError(f"broker.id={old} and node.id={node_id} are two names of one thing: write only node.id")
    if not isinstance(node_id, int) or node_id < 0:
        raise ConfigError("node.id must be set to a number of at least 0")
    return NodeId(node_id)


def _directories(values: Mapping[str, Value]) -> tuple[tuple[str, ...], str]:
    dirs = tuple(path.rstrip("/") or "/" for path in _list(values, "log.dirs") or _list(values, "log.dir"))
    if not dirs:
        raise ConfigError("log.dirs must name at least one directory")
    if len(set(dirs)) != len(dirs):
        raise ConfigError(f"log.dirs: each directory may stand there once, got {','.join(dirs)}")
    chosen = values["metadata.log.dir"]
    metadata_dir = (chosen.rstrip("/") or "/") if isinstance(chosen, str) and chosen else dirs[0]
    if metadata_dir not in dirs:
        raise ConfigError(f"metadata.log.dir={metadata_dir} must be one of log.dirs for a combined node")
    return dirs, metadata_dir


def _controller_names(values: Mapping[str, Value], names: Sequence[str]) -> list[str]:
    """Those that are listeners here. Kafka wants at least one; a controller in the same process can do without a door."""
    wanted = [name.upper() for name in _list(values, "controller.listener.names")]
    for name in wanted:
        if name not in names:
            log.warning(
                "controller.listener.names: %s is not among listeners (%s), so the controller of this node is reached"
                " from within only; to open a door for it write %s://localhost:9093 there, with a free port",
                name,
                ",".join(names),
                name,
            )
    return [name for name in wanted if name in names]


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


def _check_voters(values: Mapping[str, Value], node_id: int) -> None:
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


def _host_name() -> str:
    """A name under which this machine can be reached, as far as it knows: a name that does not resolve would help nobody."""
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name
