"""How this node connects to other nodes: the security of its own listeners, seen from the client's side.

As in Kafka, a node logs in to another with the options of the listener that it connects to, which all nodes configure alike:
`controller.listener.names` names the one for controllers, `inter.broker.listener.name` or `security.inter.broker.protocol` the one
for brokers.
"""

from __future__ import annotations

from random import Random

from headrace.base.errors import ConfigError
from headrace.client.wire.node_link import LinkOptions
from headrace.client.wire.options import MECHANISMS
from headrace.client.wire.security import make_security
from headrace.node.configuration.listener_addresses import protocols_of
from headrace.node.configuration.settings import Settings
from headrace.node.security import check_store
from headrace.options.table import Value

_TLS_OPTIONS = (
    "ssl.endpoint.identification.algorithm",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.location",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
)


def controller_link_options(settings: Settings, random: Random) -> LinkOptions:
    """Return the options of links to controllers. Raise ConfigError naming an option that cannot be used."""
    names = settings.texts("controller.listener.names") if settings.values["controller.listener.names"] else []
    if not names:
        raise ConfigError("controller.listener.names must name the listener by which other controllers are reached")
    return _link_options(settings, names[0].upper(), "sasl.mechanism.controller.protocol", random)


def inter_broker_link_options(settings: Settings, random: Random) -> LinkOptions:
    """Return the options of links to other brokers. Raise ConfigError naming an option that cannot be used."""
    return _link_options(settings, inter_broker_listener(settings), "sasl.mechanism.inter.broker.protocol", random)


def inter_broker_listener(settings: Settings) -> str:
    """Return the name of the listener by which brokers reach each other. Raise ConfigError if there is none."""
    name = settings.text("inter.broker.listener.name")
    if name:
        return name.upper()
    protocol = settings.text("security.inter.broker.protocol")
    names = [listener.name for listener in settings.broker_listeners]
    if protocol in names:
        return protocol
    found = next((name for name in names if settings.protocols[name] == protocol), None)
    if found is None:
        raise ConfigError(
            f"inter.broker.listener.name must be one of the listeners of the broker ({','.join(names)}),"
            f" because none has security.inter.broker.protocol={protocol}"
        )
    return found


def _link_options(settings: Settings, listener: str, mechanism_option: str, random: Random) -> LinkOptions:
    protocol = _protocol(settings, listener)
    values: dict[str, Value] = {"security.protocol": protocol}
    if protocol.endswith("SSL"):
        values |= _tls_values(settings, listener)
    if protocol.startswith("SASL"):
        values |= _login_values(settings, listener, mechanism_option)
    try:
        security = make_security(values, random)
    except ConfigError as error:
        raise ConfigError(f"connections to the listener {listener} of other nodes: {error}") from error
    return LinkOptions(
        client_id=f"node-{settings.node_id}",
        security=security,
        connect_timeout_s=settings.number("socket.connection.setup.timeout.ms") / 1000,
        request_timeout_s=settings.number("request.timeout.ms") / 1000,
    )


def _protocol(settings: Settings, listener: str) -> str:
    """Return the security protocol of a listener, which need not be one of this node's."""
    known = settings.protocols.get(listener)
    if known is not None:
        return known
    explicit = "listener.security.protocol.map" in settings.explicit
    return protocols_of(settings.values, [*settings.protocols, listener], [listener], explicit=explicit)[listener]


def _tls_values(settings: Settings, listener: str) -> dict[str, Value]:
    values = {option: settings.for_listener(listener, option) for option in _TLS_OPTIONS}
    for store, options in (
        ("keystore", ("ssl.keystore.location", "ssl.keystore.key")),
        ("truststore", ("ssl.truststore.location", "ssl.truststore.certificates")),
    ):
        if any(values[option] for option in options):
            check_store(settings, listener, store)
    return values


def _login_values(settings: Settings, listener: str, mechanism_option: str) -> dict[str, Value]:
    mechanism = settings.text(mechanism_option) or ""
    if mechanism not in MECHANISMS:
        raise ConfigError(f"{mechanism_option}={mechanism} is not supported; write {', '.join(MECHANISMS)}")
    option = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    login = settings.listener_values.get(option)
    if not login:
        raise ConfigError(f'{option} must say who logs in: … required username="…" password="…";')
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}
