"""Collects all problems of a node's settings, so that an operator sees them together and not one per start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headrace.base.errors import ConfigError

PROBLEMS_SHOWN_MAX = 50


class SettingProblems:
    """Problems of settings; `origins` has where each option was set: a file and line, a variable or a flag."""

    def __init__(self, origins: Mapping[str, str]) -> None:
        self._origins = origins
        self._lines: list[str] = []
        self._names: set[str] = set()  # options with a problem

    def add(self, problem: str, *names: str) -> None:
        """Add a problem of these options, unless one of them already has a problem, which may have caused this one."""
        if not self._names.isdisjoint(names):
            return
        self._names.update(names)
        origins = [(name, self._origins[name]) for name in names if name in self._origins]
        if len(names) == 1:
            where = "".join(origin for _, origin in origins)
        else:
            where = "; ".join(f"{name}: {origin}" for name, origin in origins)
        self._lines.append(f"{problem} ({where})" if where else problem)

    @contextmanager
    def about(self, *names: str) -> Iterator[None]:
        """Catch a ConfigError in the block and add it as a problem of these options."""
        try:
            yield
        except ConfigError as error:
            self.add(str(error), *names)

    def raise_if_any(self) -> None:
        if len(self._lines) == 1:
            raise ConfigError(self._lines[0])
        if self._lines:
            shown = self._lines[:PROBLEMS_SHOWN_MAX]
            if len(self._lines) > len(shown):
                shown.append(f"and {len(self._lines) - len(shown)} more")
            raise ConfigError("\n  ".join([f"{len(self._lines)} settings cannot be used:", *shown]))
