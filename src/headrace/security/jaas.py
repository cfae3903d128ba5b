"""Kafka's one-line login configuration (JAAS): `module.Class required name="value" …;`."""

from __future__ import annotations

import re
from typing import NamedTuple

from headrace.base.errors import ConfigError

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_USER = "user_"
_FLAGS = ("required", "requisite", "sufficient", "optional")
_HEAD = re.compile(r"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)\s*")
_PAIR = re.compile(
    r"""(?P<name>[\w.@-]+)\s*=\s*(?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>(?:\\.|[^'\\])*)'|(?P<bare>[^\s;"']+))\s*"""
)


class Login(NamedTuple):
    module: str
    options: dict[str, str]

    @property
    def users(self) -> dict[str, str]:
        """Return the passwords by user name, as the login of a PLAIN server has them."""
        return {name.removeprefix(_USER): value for name, value in self.options.items() if name.startswith(_USER)}

    def __repr__(self) -> str:
        return f"Login({self.module}, hidden)"


def parse_login(option: str, text: str) -> Login:
    """Parse a login; raise ConfigError with the option and position, never the text, as it contains passwords."""
    head = _HEAD.match(text)
    if head is None or head["flag"].lower() not in _FLAGS:
        raise ConfigError(f'{option}: expected `module.Class required name="value" …;`')
    at, options = head.end(), dict[str, str]()
    while found := _PAIR.match(text, at):
        quoted = found["double"] if found["double"] is not None else found["single"]
        options[found["name"]] = found["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = found.end()
    if text[at:].strip() != ";":
        what = (
            "the semicolon at the end is missing" if not text[at:].strip() else "one login module and nothing after it"
        )
        raise ConfigError(f"{option}: at character {at + 1} of the value: {what}")
    return Login(head["module"], options)
