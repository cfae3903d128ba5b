"""Options with a name, a type, a default and bounds, which parse text into values; and Java's properties format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from math import isfinite

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.errors import ConfigError

INT_MAX = 2_147_483_647
LONG_MAX = 9_223_372_036_854_775_807
SHOWN_CHARACTERS_MAX = 200  # characters of an invalid value that its error message shows


class Kind(Enum):
    """Kafka's option types, with their numbers in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_BOUNDS = {Kind.INT: (-INT_MAX - 1, INT_MAX), Kind.SHORT: (-32768, 32767), Kind.LONG: (-LONG_MAX - 1, LONG_MAX)}
_INTEGER = re.compile(r"[+-]?[0-9]{1,25}\Z")
_PLAIN_DOUBLE = (1e-3, 1e7)  # Java prints doubles outside this range with an exponent

Value = bool | int | float | str | list[str] | None


class Option(Struct, frozen=True):
    name: str
    kind: Kind
    default: Value
    meaning: str
    at_least: float | None = None
    at_most: float | None = None
    one_of: tuple[str, ...] = ()
    never: tuple[float, ...] = ()  # values within the bounds that are not allowed
    unused: str | None = None  # why the option has no effect in this version
    anyway: tuple[Value, ...] = ()  # values of an unused option that describe what this version does anyway
    refused: str | None = None  # why a node does not start with the option, and what to set instead

    def parse(self, text: str) -> Value:
        text = text.strip()
        if self.kind is Kind.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._wrong(text)
            return text.lower() == "true"
        if self.kind is Kind.LIST:
            items = [item.strip() for item in text.split(",") if item.strip()]
            for item in items:
                self._check_choice(item)
            return items
        if self.kind in _BOUNDS or self.kind is Kind.DOUBLE:
            return self._parse_number(text)
        self._check_choice(text)
        return text

    def text(self, value: Value) -> str | None:
        """Return the value as Kafka prints it; None if it is not set."""
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return _java_double(value)
        return ",".join(value) if isinstance(value, list) else str(value)

    @property
    def allowed(self) -> str:
        if self.kind is Kind.BOOLEAN:
            return "true or false"
        if self.one_of:
            return ("a list of any of " if self.kind is Kind.LIST else "one of ") + ", ".join(self.one_of)
        if self.kind in _BOUNDS or self.kind is Kind.DOUBLE:
            low, high = self._bounds()
            bounded = f" from {low} to {high}" if self.kind in _BOUNDS or self.at_most is not None else ""
            if not bounded and self.at_least is not None:
                bounded = f" of at least {low}"
            return f"a number{bounded}" + "".join(f", but not {number}" for number in self.never)
        return "a list, with commas between" if self.kind is Kind.LIST else "a text"

    @property
    def is_secret(self) -> bool:
        return self.kind is Kind.PASSWORD

    def _bounds(self) -> tuple[float, float]:
        low, high = _BOUNDS.get(self.kind, (float("-inf"), float("inf")))
        return low if self.at_least is None else self.at_least, high if self.at_most is None else self.at_most

    def _parse_number(self, text: str) -> int | float:
        low, high = self._bounds()
        value: int | float
        if self.kind is Kind.DOUBLE:
            try:
                value = float(text)
            except ValueError:
                raise self._wrong(text) from None
        elif _INTEGER.match(text):
            value = int(text)
        else:
            raise self._wrong(text)
        if not low <= value <= high or not isfinite(value) or value in self.never:
            raise self._wrong(text)
        return value

    def _check_choice(self, text: str) -> None:
        if self.one_of and text not in self.one_of:
            raise self._wrong(text)

    def _wrong(self, text: str) -> ConfigError:
        shown = "(hidden)" if self.is_secret else repr(text[:SHOWN_CHARACTERS_MAX])
        return ConfigError(f"{self.name}={shown} is not allowed: it must be {self.allowed}")


def unused(why: str, *options: Option) -> tuple[Option, ...]:
    """Mark options of Kafka that are accepted without effect; setting one logs a warning with the reason `why`."""
    return tuple(replace(option, unused=why) for option in options)


def _java_double(value: float) -> str:
    low, high = _PLAIN_DOUBLE
    if value == 0 or low <= abs(value) < high:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    first, *rest = digits
    behind = "".join(map(str, rest)) or "0"
    return f"{'-' if sign else ''}{first}.{behind}E{exponent + len(rest)}"


class OptionTable(dict[str, Option]):
    def __init__(self, *options: Option) -> None:
        super().__init__((option.name, option) for option in options)

    def parse(self, settings: Mapping[str, str]) -> dict[str, Value]:
        """Parse the values of known options; raise ConfigError for the first that is unknown or invalid."""
        return {name: self.known(name).parse(text) for name, text in settings.items()}

    def known(self, name: str) -> Option:
        option = self.get(name)
        if option is None:
            raise ConfigError(f"unknown option {name}{self.suggestion(name)}")
        return option

    def suggestion(self, name: str) -> str:
        return suggestion(name, self)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean …?)` with the nearest known name, or an empty string if none is near."""
    near = get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Parse Java's properties format: comments, line continuation, `=`, `:` or white space after the name, escapes."""
    return {name: value for name, (value, _) in parse_property_lines(text, source).items()}


def parse_property_lines(text: str, source: str) -> dict[str, tuple[str, int]]:
    """Return each property's value and the number of the line where it begins; the last one of a name wins."""
    found: dict[str, tuple[str, int]] = {}
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        line = line.lstrip()
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:
            _, more = next(lines, (0, ""))
            line = line[:-1] + more.lstrip()
        name, value = _split_property(line)
        if not name:
            raise ConfigError(f"{source}, line {number}: no name before the value")
        found[name] = (value.rstrip() if value.isprintable() else value, number)
    return found


def _split_property(line: str) -> tuple[str, str]:
    name: list[str] = []
    position = 0
    while position < len(line) and line[position] not in "=: \t":
        position = _take(line, position, name)
    while position < len(line) and line[position] in " \t":
        position += 1
    if position < len(line) and line[position] in "=:":
        position += 1
    while position < len(line) and line[position] in " \t":
        position += 1
    value: list[str] = []
    while position < len(line):
        position = _take(line, position, value)
    return "".join(name), "".join(value)


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _take(line: str, position: int, into: list[str]) -> int:
    if line[position] != "\\" or position + 1 == len(line):
        into.append(line[position])
        return position + 1
    escaped = line[position + 1]
    digits = line[position + 2 : position + 6]
    if escaped == "u" and len(digits) == 4 and all(c in "0123456789abcdefABCDEF" for c in digits):
        into.append(chr(int(digits, 16)))
        return position + 6
    into.append(_ESCAPES.get(escaped, escaped))
    return position + 2
