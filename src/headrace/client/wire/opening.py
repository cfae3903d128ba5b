"""The first steps of every client: from options to values, and from values to a cluster."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping

from headrace.base.errors import ConfigError
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.security import make_security
from headrace.options.table import Option, OptionTable, Value

_LOG = logging.getLogger("headrace.client")


def client_values(
    given: Mapping[str, object], table: OptionTable, warn: Callable[[str], None] = _LOG.warning
) -> dict[str, Value]:
    """Return the values of all options in the table, as given or by default.

    Raise ConfigError naming an option that cannot be used. As in Kafka, options that are unknown or have no effect only
    cause a warning.
    """
    values: dict[str, Value] = {name: option.default for name, option in table.items()}
    for name, value in given.items():
        option = table.get(name)
        if option is None:
            warn(f"{name} is no known option of a client{table.suggestion(name)}; it is not used")
            continue
        if value is None:
            continue
        values[name] = parsed = option.parse(_text(option, value))
        if option.refused is not None and parsed:
            raise ConfigError(f"{name}: {option.refused}")
        if option.unused is not None and parsed != option.default:
            warn(f"{name} has no effect: {option.unused}")
    return values


def _text(option: Option, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise ConfigError(f"{option.name}: a {type(value).__name__} is no value of an option; it must be {option.allowed}")


def addresses(text: str, option: str = "bootstrap.servers") -> list[tuple[str, int]]:
    found = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit():
            raise ConfigError(f"{option}: {part!r} is not of the form host:port")
        found.append((host.strip("[]"), int(port)))
    return found


def open_cluster(values: Mapping[str, Value], bootstrap: list[tuple[str, int]] | None = None) -> Cluster:
    """Create a cluster without connecting yet. `bootstrap` replaces the addresses of bootstrap.servers."""
    servers, timeout_ms = values["bootstrap.servers"], values["request.timeout.ms"]
    assert isinstance(servers, list) and isinstance(timeout_ms, int)
    if bootstrap is None:
        if not servers:
            raise ConfigError("bootstrap.servers must name at least one broker, as host:port")
        bootstrap = addresses(",".join(servers))
    return Cluster(
        bootstrap,
        client_id=str(values["client.id"]),
        timeout_s=timeout_ms / 1000,
        security=make_security(values, random.SystemRandom()),
    )
