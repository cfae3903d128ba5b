"""The settings of a node: Kafka's properties from a file, the environment and `-c name=value`.

Without a file, the defaults are those of a single node. Invalid values prevent the start; they are reported together, with where each
was set. Each unknown name and each option without effect is logged as a warning.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from headrace.base.errors import ConfigError
from headrace.base.ids import NodeId
from headrace.client.wire.node_link import Address
from headrace.metadata.image import Endpoint
from headrace.node.configuration.checks import (
    BROKER,
    CONTROLLER,
    find_bootstrap_controllers,
    find_directories,
    find_node_id,
    find_roles,
    find_voters,
    resolve_listeners,
)
from headrace.node.configuration.conflicts import conflicts, surprises
from headrace.node.configuration.listener_addresses import SECURITY_PROTOCOLS, ListenerAddress
from headrace.node.configuration.listener_options import PREFIX as LISTENER_PREFIX
from headrace.node.configuration.listener_options import find_listener_option, parse_listener_options
from headrace.node.configuration.problems import SettingProblems
from headrace.node.configuration.sources import gather
from headrace.options.node_options import NODE_OPTIONS
from headrace.options.removed_options import replacement_of
from headrace.options.table import Kind, Option, OptionTable, Value
from headrace.options.topic_options import topic_defaults

log = logging.getLogger(__name__)

ANY_HOST = frozenset({"", "0.0.0.0", "::"})  # hosts of listeners that accept connections to any address of the machine
LOG_FORMAT = "headrace.log.format"
OWN_OPTIONS = OptionTable(
    Option("headrace.http.listener", Kind.STRING, "localhost:9404", "host:port of /metrics and /health; empty: none"),
    Option(LOG_FORMAT, Kind.STRING, "text", "how `headrace serve` writes its log", one_of=("text", "json")),
)
ALL_OPTIONS = OptionTable(*NODE_OPTIONS.values(), *OWN_OPTIONS.values())

# Defaults of `headrace serve` without a file: one node, broker and controller, reachable from this machine only.
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
    roles: frozenset[str]
    quorum_voters: Mapping[NodeId, Address]  # addresses of the static voters; empty if they are in the metadata log
    bootstrap_controllers: tuple[Address, ...]
    log_dirs: tuple[str, ...]
    metadata_dir: str
    broker_listeners: tuple[ListenerAddress, ...]
    controller_listeners: tuple[ListenerAddress, ...]
    advertised: tuple[ListenerAddress, ...]
    protocols: Mapping[str, str]  # security protocol by listener name
    listener_values: Mapping[str, Value]
    origins: Mapping[str, str] = field(default_factory=dict)  # where each option was set, by name

    @property
    def is_broker(self) -> bool:
        return BROKER in self.roles

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.roles

    @property
    def is_alone(self) -> bool:
        """Return whether this node is a cluster by itself, as far as the settings say."""
        others = [one for one in self.bootstrap_controllers if not self._is_own_controller(one)]
        return self.is_controller and len(self.quorum_voters) <= 1 and not others

    def _is_own_controller(self, address: Address) -> bool:
        local = {"localhost", "127.0.0.1", "::1", self.host_name}
        return any(
            listener.port == address.port
            and (listener.host == address.host or (address.host in local and listener.host in local | ANY_HOST))
            for listener in self.controller_listeners
        )

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
        """Return the items of a list option."""
        value = self.values[name]
        assert isinstance(value, list), f"{name} is {value!r}"
        return value

    def for_listener(self, listener: str, option: str, mechanism: str | None = None) -> Value:
        """Return the listener's value of an option, or else the node's."""
        try:
            return find_listener_option(self.listener_values, listener, option, mechanism)
        except KeyError:
            return self.values[option]

    def has_listener_option(self, listener: str, option: str) -> bool:
        """Return whether the option is set for this listener specifically."""
        return f"{LISTENER_PREFIX}{listener.lower()}.{option}" in self.listener_values

    def topic_defaults(self) -> dict[str, Value]:
        return topic_defaults(self.values)

    def static_texts(self) -> dict[str, str]:
        """Return the options that were set, formatted as Kafka prints them."""
        found = {name: ALL_OPTIONS[name].text(self.values[name]) for name in sorted(self.explicit)}
        return {name: text for name, text in found.items() if text is not None}

    @property
    def host_name(self) -> str:
        return _host_name()

    def endpoints(self, bound_ports: Mapping[str, int]) -> list[Endpoint]:
        """Return the endpoints that clients are sent, with port 0 replaced by the listener's bound port."""
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
    """Read the settings. Raise ConfigError with all invalid ones, where each was set and what is allowed.

    With `strict`, an unknown name is an error too, not a warning.
    """
    given = gather(file, environment or {}, overrides, OWN_OPTIONS)
    problems = SettingProblems(given.origins)
    for flag in given.bad_flags:
        problems.add(flag)
    return _make(given.texts, problems, single_node=file is None, strict=strict, origins=given.origins)


def make_settings(given: Mapping[str, str], *, single_node: bool) -> Settings:
    return _make(given, SettingProblems({}), single_node=single_node, strict=False, origins={})


def _make(
    given: Mapping[str, str],
    problems: SettingProblems,
    *,
    single_node: bool,
    strict: bool,
    origins: Mapping[str, str],
) -> Settings:
    texts = {**_single_node(given), **given} if single_node else dict(given)
    values: dict[str, Value] = {name: option.default for name, option in ALL_OPTIONS.items()}
    unknown: list[str] = []
    for name, text in texts.items():
        option = ALL_OPTIONS.get(name)
        if option is not None:
            with problems.about(name):
                values[name] = _parse(option, text)
        elif not name.startswith(LISTENER_PREFIX):
            unknown.append(_unknown(name, origins.get(name)))
    explicit = frozenset(texts) & ALL_OPTIONS.keys()
    for problem, names in conflicts(values, explicit):
        problems.add(problem, *names)
    settings = _resolve(values, explicit, texts, unknown, origins, problems)
    for line in unknown if strict else ():
        problems.add(line)
    problems.raise_if_any()
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
        # With custom listeners the controller needs none, because it runs in the same process.
        del defaults["controller.listener.names"]
    if "broker.id" in given and "node.id" not in given:
        del defaults["node.id"]
    return defaults


def _parse(option: Option, text: str) -> Value:
    value = option.parse(text)
    if option.refused is not None and value not in (option.default, "", []):
        raise ConfigError(f"{option.name}: {option.refused}")
    return value


def _unknown(name: str, origin: str | None) -> str:
    shown = f"{name} ({origin})" if origin else name
    instead = replacement_of(name)
    if instead is not None:
        return f"{shown} is no option of Kafka any more: {instead}"
    return f"{shown} is no known option{ALL_OPTIONS.suggestion(name)}"


def _warn_if_unused(settings: Settings, option: Option) -> None:
    value = settings.values[option.name]
    if option.unused is None or value in (option.default, *option.anyway, "", []):
        return
    log.warning("%s has no effect: %s", option.name, option.unused)


def _resolve(
    values: dict[str, Value],
    explicit: frozenset[str],
    texts: Mapping[str, str],
    unknown: list[str],
    origins: Mapping[str, str],
    problems: SettingProblems,
) -> Settings:
    """Return the settings that the values result in. If this adds problems, the result must not be used."""
    node_id = NodeId(-1)
    roles = frozenset({BROKER, CONTROLLER})
    voters: dict[NodeId, Address] = {}
    bootstrap: tuple[Address, ...] = ()
    dirs: tuple[str, ...] = ()
    metadata_dir = ""
    with problems.about("process.roles"):
        roles = find_roles(values)
    with problems.about("node.id", "broker.id"):
        node_id = find_node_id(values)
    with problems.about("log.dirs", "log.dir", "metadata.log.dir"):
        dirs, metadata_dir = find_directories(values)
    listeners = resolve_listeners(values, explicit, roles, problems)
    with problems.about("controller.quorum.voters", "node.id", "process.roles"):
        voters = find_voters(values, node_id, roles, listeners.controller)
    with problems.about("controller.quorum.bootstrap.servers"):
        bootstrap = find_bootstrap_controllers(values)
    names = [listener.name for listener in (*listeners.broker, *listeners.controller)]
    listener_values: dict[str, Value] = {}
    for name, text in texts.items() if names else ():
        with problems.about(name):
            listener_values |= parse_listener_options({name: text}, ALL_OPTIONS, names, unknown.append)
    return Settings(
        values=values,
        explicit=explicit,
        node_id=node_id,
        roles=roles,
        quorum_voters=voters,
        bootstrap_controllers=bootstrap,
        log_dirs=dirs,
        metadata_dir=metadata_dir,
        broker_listeners=listeners.broker,
        controller_listeners=listeners.controller,
        advertised=listeners.advertised,
        protocols=listeners.protocols,
        listener_values=listener_values,
        origins=origins,
    )


def _host_name() -> str:
    """Return this machine's fully qualified name, or "localhost" if that name does not resolve."""
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name
