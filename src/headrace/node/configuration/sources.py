"""Sources of settings: flags override the environment, which overrides a file. The names are Kafka's in all of them.

Environment variables are spelled as in Kafka's container image, with our prefix: HEADRACE_LOG_DIRS is log.dirs, `__` stands for an
underscore and `___` for a hyphen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.base.errors import ConfigError
from headrace.base.system_errors import system_error_text
from headrace.options.table import parse_property_lines

FILE_BYTES_MAX = 1 << 20
ENVIRONMENT_PREFIX = "HEADRACE_"
OWN_PREFIX = "headrace."
# Not settings of a node: variables of our tests and tools; RUNTIME is where the drivers of pipelines are looked up.
_TOOLING = frozenset({"KAFKA_LIBS", "SCHEMAS", "SEED", "ROUNDS", "OPERATIONS", "RUNTIME"})
_UNDERSCORES = re.compile("_{1,3}")
_MEANS = {"_": ".", "__": "_", "___": "-"}


class Given(NamedTuple):
    """Settings as texts, and where each was set: a file and line, an environment variable or a flag."""

    texts: dict[str, str]
    origins: dict[str, str]
    bad_flags: list[str]  # flags that are not name=value


def gather(file: Path | None, environment: Mapping[str, str], flags: Sequence[str], own: Collection[str] = ()) -> Given:
    """Collect settings from all sources. Raise ConfigError if the file cannot be read.

    `own` are the options that begin with `headrace.`; their environment variables do not repeat that word after the prefix.
    """
    given = Given({}, {}, [])
    if file is not None:
        for name, (text, line) in _parse_file(file).items():
            given.texts[name], given.origins[name] = text, f"{file}, line {line}"
    for variable, text in sorted(environment.items()):
        option = option_name(variable)
        if option is not None:
            name = OWN_PREFIX + option if OWN_PREFIX + option in own else option
            given.texts[name], given.origins[name] = text, variable
    for flag in flags:
        name, equals, text = flag.partition("=")
        name = name.strip()
        if not equals or not name:
            given.bad_flags.append(f"-c {name!r}: expected name=value")
        else:
            given.texts[name], given.origins[name] = text, "-c"
    return given


def read_properties(file: Path) -> dict[str, str]:
    return {name: text for name, (text, _) in _parse_file(file).items()}


def _parse_file(file: Path) -> dict[str, tuple[str, int]]:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{file} has more than {FILE_BYTES_MAX} bytes: this is not a settings file")
        return parse_property_lines(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {system_error_text(error)}") from error


def option_name(variable: str) -> str | None:
    """Return the option that an environment variable sets, or None if it is not a setting."""
    rest = variable.removeprefix(ENVIRONMENT_PREFIX)
    if rest == variable or not rest or rest in _TOOLING:
        return None
    return _UNDERSCORES.sub(lambda found: _MEANS[found[0]], rest).lower()


def variable_name(option: str) -> str:
    """Return the environment variable that sets an option."""
    option = option.removeprefix(OWN_PREFIX)
    for character, underscores in (("_", "__"), ("-", "___"), (".", "_")):
        option = option.replace(character, underscores)
    return ENVIRONMENT_PREFIX + option.upper()
