"""What a node is told: Kafka's property names, from a file and from `-c name=value`, with defaults that make a single node."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import ConfigError
from headrace.base.ids import NodeId
from headrace.base.options import Kind, Option, OptionTable, Value, parse_properties
from headrace.broker.node_options import NODE_OPTIONS
from headrace.metadata.image import Endpoint
from headrace.metadata.topic_options import topic_defaults

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 1 << 20
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
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


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Settings:
    values: Mapping[str, Value]
    explicit: frozenset[str]
    node_id: NodeId
    log_dirs: tuple[str, ...]
    metadata_dir: str
    broker_listeners: tuple[ListenerAddress, ...]
    controller_listeners: tuple[ListenerAddress, ...]
    advertised: tuple[ListenerAddress, ...]

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

    def topic_defaults(self) -> dict[str, Value]:
        return topic_defaults(self.values)

    def endpoints(self, bound_ports: Mapping[str, int]) -> list[Endpoint]:
        """What clients are told; port 0 means whatever port the listener got."""
        return [
            Endpoint(
                address.name,
                address.host or _host_name(),
                address.port or bound_ports[address.name],
                SECURITY_PROTOCOLS["PLAINTEXT"],
            )
            for address in self.advertised
        ]


def read_settings(file: Path | None, overrides: Sequence[str]) -> Settings:
    """ConfigError names the first setting that cannot be used and what is allowed."""
    given: dict[str, str] = {}
    if file is not None:
        try:
            if file.stat().st_size > FILE_BYTES_MAX:
                raise ConfigError(f"{file} has more than {FILE_BYTES_MAX} bytes: this is no settings file")
            given = parse_properties(file.read_text(), str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from error
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"-c {override!r}: expected name=value")
        given[name.strip()] = text
    return make_settings(given, single_node=file is None)


def make_settings(given: Mapping[str, str], *, single_node: bool) -> Settings:
    texts = dict(given)
    if single_node:
        defaults = dict(SINGLE_NODE)
        if "listeners" in given and "controller.listener.names" not in given:
            # Somebody chose their own doors: the controller then needs none, it lives in the same process.
            del defaults["controller.listener.names"]
        texts = {**defaults, **given}
    values: dict[str, Value] = {name: option.default for name, option in ALL_OPTIONS.items()}
    for name, text in texts.items():
        option = ALL_OPTIONS.get(name)
        if option is not None:
            values[name] = option.parse(text)
        elif not name.startswith("listener.name."):
            log.warning("%s is no known option%s; it is not used", name, ALL_OPTIONS.suggestion(name))
    return _resolve(values, frozenset(texts) & ALL_OPTIONS.keys())


def _resolve(values: dict[str, Value], explicit: frozenset[str]) -> Settings:
    roles = _list(values, "process.roles")
    if sorted(roles) != ["broker", "controller"]:
        raise ConfigError(
            f"process.roles={','.join(roles)} is not supported by this version: a node is broker,controller (one combined node)"
        )
    node_id = values["node.id"] if values["node.id"] is not None else values["broker.id"]
    if not isinstance(node_id, int) or node_id < 0:
        raise ConfigError("node.id must be set to a number of at least 0")
    dirs = tuple(_list(values, "log.dirs") or _list(values, "log.dir"))
    if not dirs:
        raise ConfigError("log.dirs must name at least one directory")
    metadata_dir = values["metadata.log.dir"] or dirs[0]
    assert isinstance(metadata_dir, str)
    if metadata_dir not in dirs:
        raise ConfigError(f"metadata.log.dir={metadata_dir} must be one of log.dirs for a combined node")
    listeners = [_address("listeners", text) for text in _list(values, "listeners")]
    names = [listener.name for listener in listeners]
    if len(set(names)) != len(names):
        raise ConfigError(f"listeners: each name may stand there once, got {','.join(names)}")
    controller_names = set(_list(values, "controller.listener.names"))
    for name in sorted(controller_names - set(names)):
        raise ConfigError(f"controller.listener.names: {name} is not among listeners ({','.join(names)})")
    broker_listeners = tuple(listener for listener in listeners if listener.name not in controller_names)
    if not broker_listeners:
        raise ConfigError("listeners: a broker needs a listener that controller.listener.names does not name")
    _check_protocols(values, names)
    _check_voters(values, node_id)
    advertised = tuple(_address("advertised.listeners", text) for text in _list(values, "advertised.listeners"))
    for address in advertised:
        if address.name not in names:
            raise ConfigError(f"advertised.listeners: {address.name} is not among listeners ({','.join(names)})")
    return Settings(
        values=values,
        explicit=explicit,
        node_id=NodeId(node_id),
        log_dirs=tuple(directory.rstrip("/") or "/" for directory in dirs),
        metadata_dir=metadata_dir.rstrip("/") or "/",
        broker_listeners=broker_listeners,
        controller_listeners=tuple(listener for listener in listeners if listener.name in controller_names),
        advertised=tuple(a for a in advertised if a.name not in controller_names) or broker_listeners,
    )


def _list(values: Mapping[str, Value], name: str) -> list[str]:
    value = values[name]
    if value is None:
        return []
    assert isinstance(value, list), f"{name} is {value!r}"
    return value


def _address(option: str, text: str) -> ListenerAddress:
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not name or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{option}: {text!r} is not of the form NAME://host:port with a port up to 65535")
    return ListenerAddress(name.upper(), host.strip("[]"), int(port))


def _check_protocols(values: Mapping[str, Value], names: Sequence[str]) -> None:
    given = values["listener.security.protocol.map"]
    mapped: dict[str, str] = {}
    if isinstance(given, str) and ":" in given:
        for pair in given.split(","):
            name, _, protocol = pair.strip().partition(":")
            mapped[name.upper()] = protocol.upper()
    for name in names:
        protocol = mapped.get(name, name if name in SECURITY_PROTOCOLS else "PLAINTEXT")
        if protocol != "PLAINTEXT":
            raise ConfigError(f"listeners: {name} wants {protocol}, this version speaks PLAINTEXT only")


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
