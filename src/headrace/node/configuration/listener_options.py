"""Options per listener: `listener.name.<name>.<option>`, and for SASL `listener.name.<name>.<mechanism>.<option>`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from headrace.base.errors import ConfigError
from headrace.options.table import OptionTable, Value

log = logging.getLogger(__name__)

PREFIX = "listener.name."
_MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512", "gssapi", "oauthbearer")
_KINDS = ("ssl.", "sasl.")
_SINGLE = ("connections.max.reauth.ms", "max.connections", "principal.builder.class")


def parse_listener_options(
    given: Mapping[str, str], known: OptionTable, listeners: Sequence[str], unknown: Callable[[str], None]
) -> dict[str, Value]:
    """Return the values of listener options by their full names. Raise ConfigError for an invalid value.

    `unknown` is called with a message for each option whose listener or name is unknown.
    """
    names = [name.lower() for name in listeners]
    values: dict[str, Value] = {}
    for full, text in given.items():
        if not full.startswith(PREFIX):
            continue
        listener, _, rest = full.removeprefix(PREFIX).partition(".")
        if listener.lower() not in names:
            unknown(f"{full}: there is no listener {listener.upper()} ({','.join(listeners)})")
            continue
        mechanism, _, behind = rest.partition(".")
        name = behind if mechanism in _MECHANISMS else rest
        option = known.get(name)
        if option is None or not (name.startswith(_KINDS) or name in _SINGLE):
            unknown(f"{full} is no known option of a listener{known.suggestion(name) if option is None else ''}")
            continue
        try:
            value = option.parse(text)
        except ConfigError as error:
            raise ConfigError(f"{full[: -len(name)]}{error}") from error
        if option.refused is not None and value not in (option.default, ""):
            raise ConfigError(f"{full}: {option.refused}")
        if option.unused is not None and name != "sasl.jaas.config" and value not in (option.default, *option.anyway):
            log.warning("%s has no effect: %s", full, option.unused)
        values[f"{PREFIX}{listener.lower()}.{rest}"] = value
    return values


def find_listener_option(values: Mapping[str, Value], listener: str, option: str, mechanism: str | None) -> Value:
    """Return a listener's value of an option. Raise KeyError if it has none, so that the node's value applies."""
    prefix = f"{PREFIX}{listener.lower()}."
    if mechanism is not None:
        specific = f"{prefix}{mechanism.lower()}.{option}"
        if specific in values:
            return values[specific]
    return values[prefix + option]
