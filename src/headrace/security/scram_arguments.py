"""The argument of `format --add-scram`, in Kafka's syntax: SCRAM-SHA-256=[name=alice,password=secret].

Further fields are iterations, salt and saltedpassword.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.errors import ConfigError, KafkaError
from headrace.security.credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramMechanism,
    check_iterations,
    credential_from_salted,
    make_salt,
    salted_password,
)

if TYPE_CHECKING:
    from random import Random

_ARGUMENT = re.compile(r"(?P<mechanism>[A-Z0-9-]+)=\[(?P<fields>.*)\]", re.DOTALL)
_FIELD = re.compile(r'(?P<name>[a-z]+)=(?:"(?P<quoted>[^"]*)"|(?P<bare>[^,"]*))(?:,|\Z)')
_FIELDS = ("name", "password", "salt", "iterations", "saltedpassword")


class ScramUser(NamedTuple):
    name: str
    mechanism: ScramMechanism
    credential: ScramCredential


def parse_scram_argument(text: str, random: Random) -> ScramUser:
    """Parse the argument; raise ConfigError if it is invalid, without repeating a password."""
    found = _ARGUMENT.fullmatch(text.strip())
    if found is None or found["mechanism"] not in SCRAM_MECHANISMS:
        raise ConfigError(f"--add-scram: expected {' or '.join(SCRAM_MECHANISMS)} and =[name=…,password=…] after it")
    mechanism, fields = SCRAM_MECHANISMS[found["mechanism"]], _parse_fields(found["fields"])
    name, password, salted = fields.get("name"), fields.get("password"), fields.get("saltedpassword")
    if not name:
        raise ConfigError("--add-scram: a name is needed")
    if (password is None) == (salted is None):
        raise ConfigError(f"--add-scram: either a password or a saltedpassword is needed for {name}")
    if salted is not None and "salt" not in fields:
        raise ConfigError(f"--add-scram: a saltedpassword for {name} needs its salt")
    try:
        iterations = int(fields.get("iterations", ITERATIONS_MIN))
        check_iterations(iterations)
    except (ValueError, KafkaError) as error:
        raise ConfigError(
            f"--add-scram: iterations must be a number from {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        ) from error
    salt = _decode(fields["salt"]) if "salt" in fields else make_salt(random)
    key = _decode(salted) if salted is not None else salted_password(mechanism, password or "", salt, iterations)
    return ScramUser(name, mechanism, credential_from_salted(mechanism, key, salt, iterations))


def _parse_fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _FIELD.match(text, at)
        if found is None or found["name"] not in _FIELDS or found["name"] in fields:
            raise ConfigError(
                f"--add-scram: between the brackets each of {', '.join(_FIELDS)} may occur once, as name=value"
            )
        fields[found["name"]] = found["bare"] if found["quoted"] is None else found["quoted"]
        at = found.end()
    return fields


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError("--add-scram: salt and saltedpassword are in base64") from error
