"""Principals: the identities of authenticated clients."""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.errors import ConfigError

USER = "User"


class Principal(NamedTuple):
    """The identity of a client; a tuple, because it is part of the key of every cached decision."""

    type: str = USER
    name: str = "ANONYMOUS"

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal()
EVERYBODY = Principal(USER, "*")


def parse_principal(text: str) -> Principal:
    """Parse `type:name`; raise ValueError if there is no type before the first colon or no name after it."""
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise ValueError(f"{text!r} is no principal: it must look like User:name")
    return Principal(kind, name)


def parse_super_users(text: str) -> frozenset[Principal]:
    """Parse `super.users`, separated by semicolons because distinguished names contain commas; raise ConfigError."""
    try:
        return frozenset(parse_principal(part.strip()) for part in text.split(";") if part.strip())
    except ValueError as error:
        raise ConfigError(f"super.users: {error}; several are parted by semicolons") from error
