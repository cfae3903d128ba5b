"""Where settings come from: flags over the environment over a file; the names are Kafka's everywhere.

In the environment they look as in Kafka's container image, under our own prefix: HEADRACE_LOG_DIRS is log.dirs, `__` stands for an
underscore and `___` for a hyphen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.base.errors import ConfigError
from headrace.base.options import parse_properties

FILE_BYTES_MAX = 1 << 20
ENVIRONMENT_PREFIX = "HEADRACE_"
OWN_PREFIX = "headrace."
# Not settings of a node: they steer our own tests and tools.
_TOOLING = frozenset({"KAFKA_LIBS", "SCHEMAS", "SEED", "ROUNDS", "OPERATIONS"})
_UNDERSCORES = re.compile("_{1,3}")
_MEANS = {"_": ".", "__": "_", "___": "-"}


class Given(NamedTuple):
    """`origins`: for each name who said so, for the operator to read."""

    texts: dict[str, str]
    origins: dict[str, str]


def gather(file: Path | None, environment: Mapping[str, str], flags: Sequence[str], own: Collection[str] = ()) -> Given:
    """ConfigError for a file that cannot be read or a flag that is no name=value. `own`: options of ours, headrace.…, which need
    their first word only once in the environment."""
    given = Given({}, {})
    if file is not None:
        _add(given, read_properties(file), str(file))
    for variable, text in sorted(environment.items()):
        name = option_name(variable)
        if name is not None:
            _add(given, {f"{OWN_PREFIX}{name}" if OWN_PREFIX + name in own else name: text}, variable)
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"-c {name!r}: expected name=value")
        _add(given, {name.strip(): text}, "-c")
    return given


def _add(given: Given, texts: Mapping[str, str], origin: str) -> None:
    given.texts.update(texts)
    given.origins.update(dict.fromkeys(texts, origin))


def read_properties(file: Path) -> dict[str, str]:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{file} has more than {FILE_BYTES_MAX} bytes: this is no settings file")
        return parse_properties(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def option_name(variable: str) -> str | None:
    """None for a variable that is not about settings."""
    rest = variable.removeprefix(ENVIRONMENT_PREFIX)
    if rest == variable or not rest or rest in _TOOLING:
        return None
    return _UNDERSCORES.sub(lambda found: _MEANS[found[0]], rest).lower()


def variable_name(option: str) -> str:
    """How an option is written in the environment."""
    option = option.removeprefix(OWN_PREFIX)
    for character, underscores in (("_", "__"), ("-", "___"), (".", "_")):
        option = option.replace(character, underscores)
    return ENVIRONMENT_PREFIX + option.upper()
