"""ssl.principal.mapping.rules: maps the distinguished name of a certificate to a short user name.

Rules are `RULE:pattern/replacement/`, optionally followed by `L` or `U`, or `DEFAULT`, separated by commas. The first rule whose
pattern matches the whole name wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from headrace.base.errors import ConfigError

OPTION = "ssl.principal.mapping.rules"
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*"
)
_REFERENCE = re.compile(r"\\(.)|\$(\d+)")


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self.pattern.sub(self._expand, name)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped

    def _expand(self, found: re.Match[str]) -> str:
        """Expand `$1` to a group; as in Java, drop the last digits of a number until such a group exists."""

        def value(reference: re.Match[str]) -> str:
            literal, digits = reference[1], reference[2]
            if literal is not None:
                return literal
            rest = ""
            while int(digits) > self.pattern.groups and len(digits) > 1:
                digits, rest = digits[:-1], digits[-1] + rest
            if int(digits) > self.pattern.groups:
                return f"${digits}{rest}"
            return (found[int(digits)] or "") + rest

        return _REFERENCE.sub(value, self.replacement)


def principal_mapping(text: str) -> Callable[[str], str | None]:
    """Return the mapping, which returns None if no rule matches. Raise ConfigError if the rules are invalid."""
    rules: list[_Rule | None] = []
    at = 0
    text = text.strip()
    while at < len(text):
        found = _RULE.match(text, at)
        if found is None or (found.end() < len(text) and text[found.end()] != ","):
            raise ConfigError(f"{OPTION}: {text[at:]!r} is neither DEFAULT nor RULE:pattern/replacement/[LU]")
        if found["default"]:
            rules.append(None)
        else:
            try:
                rules.append(_Rule(re.compile(found["pattern"]), found["replacement"], found["case"]))
            except re.error as error:
                raise ConfigError(f"{OPTION}: the pattern {found['pattern']!r} cannot be read: {error}") from error
        at = found.end() + 1

    def mapping(name: str) -> str | None:
        for rule in rules:
            mapped = name if rule is None else rule.apply(name)
            if mapped is not None:
                return mapped
        return None

    return mapping
