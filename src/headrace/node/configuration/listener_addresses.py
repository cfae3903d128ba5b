"""Parses `listeners` and related options: addresses (also IPv6), security protocols, advertised addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from headrace.base.errors import ConfigError
from headrace.options.table import Value

SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
ALL_INTERFACES = ("0.0.0.0", "::")
_PORT_MAX = 65535
_ADDRESS = re.compile(
    r"(?P<name>[A-Za-z0-9_-]+)://(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[\w.-]*)):(?P<port>[0-9]{1,5})\Z",
    re.ASCII,
)


class ListenerAddress(Struct, frozen=True):
    name: str
    host: str  # empty for all interfaces
    port: int  # 0 for any free port


def host_and_port(host: str, port: int) -> str:
    """Format an address as host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_addresses(option: str, texts: Sequence[str]) -> tuple[ListenerAddress, ...]:
    """Parse listener addresses. Raise ConfigError if one is invalid or a name appears twice."""
    found = tuple(_parse(option, text) for text in texts)
    names = [address.name for address in found]
    if len(set(names)) != len(names):
        raise ConfigError(f"{option}: each name may appear only once, got {','.join(names)}")
    return found


def _parse(option: str, text: str) -> ListenerAddress:
    match = _ADDRESS.match(text)
    if match is None or int(match["port"]) > _PORT_MAX:
        raise ConfigError(
            f"{option}: {text!r} is not of the form NAME://host:port with a port up to {_PORT_MAX};"
            " write an IPv6 address in brackets: NAME://[::1]:9092"
        )
    return ListenerAddress(match["name"].upper(), match["six"] or match["host"] or "", int(match["port"]))


def check_advertised(advertised: Sequence[ListenerAddress], names: Sequence[str], *, explicit: bool) -> None:
    for address in advertised:
        if address.name not in names:
            raise ConfigError(f"advertised.listeners: {address.name} is not among listeners ({','.join(names)})")
        if address.host in ALL_INTERFACES:
            what = "advertised.listeners" if explicit else "advertised.listeners is not set, and listeners"
            raise ConfigError(
                f"{what} names {address.host} for {address.name}, an address that clients cannot connect to:"
                f" write advertised.listeners={address.name}://<a name of this machine>:{address.port}"
            )


def protocols_of(
    values: Mapping[str, Value], names: Sequence[str], controller_names: Sequence[str], *, explicit: bool
) -> dict[str, str]:
    """Return the security protocol of each listener. Raise ConfigError if one has none.

    As in Kafka, a controller listener without an entry is PLAINTEXT only if no map is set and no listener is secured. Otherwise a node that
    authenticates its clients could have an unprotected controller listener.
    """
    given = values["listener.security.protocol.map"]
    assert isinstance(given, str)
    mapped: dict[str, str] = {}
    for pair in given.split(","):
        name, _, protocol = pair.strip().partition(":")
        mapped[name.upper()] = protocol.upper()
        if not name or protocol.upper() not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: {pair.strip()!r} is not of the form NAME:PROTOCOL with a protocol"
                f" of {', '.join(SECURITY_PROTOCOLS)}"
            )
    secured = [name for name in names if name in SECURITY_PROTOCOLS and name != "PLAINTEXT"]
    if not explicit and not secured:
        mapped |= {name: mapped.get(name, "PLAINTEXT") for name in controller_names}
    for name in names:
        if name not in mapped:
            why = (
                f"; it is not PLAINTEXT by default, because {secured[0]} is secured"
                if secured and name in controller_names
                else ""
            )
            entries = ",".join(
                f"{other}:{mapped.get(other, secured[0] if secured else 'PLAINTEXT')}" for other in names
            )
            raise ConfigError(
                f"listeners: {name} has no security protocol{why}; write listener.security.protocol.map={entries}"
                f" (protocols: {', '.join(SECURITY_PROTOCOLS)})"
            )
    return {name: mapped[name] for name in names}
