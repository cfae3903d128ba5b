"""Reads mappings by key. Unknown keys, missing keys and wrong values become problems with a location, and reading continues."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches

from headrace.pipelines.definitions.definition import Place, Problem
from headrace.pipelines.definitions.durations import EXPECTED, duration
from headrace.pipelines.definitions.tree import Entries, Items, Node, Text

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
SHOWN_CHARACTERS_MAX = 80  # limit for a wrong text in a message


class Problems:
    """Collects problems; `environment` supplies the values for `${NAME}` in texts."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.found: list[Problem] = []
        self._environment = environment

    def add(self, where: Place, text: str) -> None:
        self.found.append(Problem(where, text))

    def filled(self, text: str, where: Place) -> str:
        def value(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            known = self._environment.get(name, default)
            if known is None:
                self.add(where, f"the environment has no {name}; set it, or write ${{{name}:-default}}")
            return known or ""

        return _VARIABLE.sub(value, text)


def suggestion(name: str, known: Collection[str]) -> str:
    lower = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), lower, n=1)
    return f" (did you mean {lower[near[0]]}?)" if near else ""


def shown(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 1] + "…")


class Fields:
    """One mapping. `what` describes it in problems: "a source", "a sink to a topic"."""

    def __init__(self, node: Node, problems: Problems, what: str) -> None:
        self.where = node.where
        self.what = what
        self.problems = problems
        self._entries = node.entries if isinstance(node, Entries) else {}
        if not isinstance(node, Entries):
            problems.add(node.where, f"{what} is a mapping of keys to values, not {node.what}")

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def location(self, name: str) -> Place:
        entry = self._entries.get(name)
        return self.where if entry is None else entry.where

    def node(self, name: str) -> Node | None:
        entry = self._entries.get(name)
        return None if entry is None else entry.node

    def wrong(self, name: str, text: str) -> None:
        self.problems.add(self.location(name), f"{name}: {text}")

    def only(self, known: Collection[str]) -> None:
        for name, entry in self._entries.items():
            if name not in known:
                near = suggestion(name, known)
                there = "" if near else f"; it may have {', '.join(known)}"
                self.problems.add(entry.where, f"{self.what} has no key {name}{near}{there}")

    def text(self, name: str, *, fill: bool = True) -> str | None:
        node = self.node(name)
        if node is None:
            return None
        if not isinstance(node, Text):
            self.wrong(name, f"a text is expected, not {node.what}")
        elif node.is_null or not node.value.strip():
            self.wrong(name, "has no value")
        else:
            return self.problems.filled(node.value, self.location(name)) if fill else node.value
        return None

    def require(self, name: str, expected: str) -> None:
        if name not in self:
            self.problems.add(self.where, f"{self.what} needs {name}: {expected}")

    def needed(self, name: str, expected: str) -> str | None:
        self.require(name, expected)
        return self.text(name)

    def kind(self, keys: Mapping[str, Collection[str]], qualifier: str = "") -> str | None:
        """Return which of `keys` the mapping has, after checking that it has only the keys allowed with that one.

        `qualifier` is a key that determines the kind only if no other one does.
        """
        given = [key for key in keys if key in self and key != qualifier] or [key for key in [qualifier] if key in self]
        if len(given) == 1:
            self.only(keys[given[0]])
            return given[0]
        if given:
            self.problems.add(self.where, f"{self.what} has {' and '.join(given)}, of which only one can be")
        else:
            near = next((near for key in self if (near := suggestion(key, keys))), "")
            self.problems.add(self.where, f"{self.what} needs one of {', '.join(keys)}{near}")
        return None

    def choice(self, name: str, allowed: Collection[str], default: str) -> str:
        text = self.text(name)
        if text is None:
            return default
        if text not in allowed:
            self.wrong(name, f"{shown(text)} is none of {', '.join(allowed)}{suggestion(text, allowed)}")
            return default
        return text

    def boolean(self, name: str) -> bool:
        text = self.text(name)
        if text is not None and text.lower() not in ("true", "false"):
            self.wrong(name, f"true or false is expected, not {shown(text)}")
        return text is not None and text.lower() == "true"

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the texts of a list, or a single text."""
        node = self.node(name)
        if not isinstance(node, Items):
            text = self.text(name)
            return () if text is None else (text,)
        found = [one for one in node.items if isinstance(one, Text) and one.value.strip() and not one.is_null]
        if len(found) < len(node.items) or not found:
            self.wrong(name, "a list of texts is expected")
        return tuple(self.problems.filled(one.value, one.where) for one in found)

    def mapping(self, name: str) -> dict[str, str]:
        """Return a mapping of names to texts."""
        node = self.node(name)
        if node is None:
            return {}
        inner = Fields(node, self.problems, name)
        found: dict[str, str] = {}
        for key, entry in inner._entries.items():
            one = entry.node
            if isinstance(one, Text) and not one.is_null:
                found[key] = self.problems.filled(one.value, entry.where)  # may be empty if given explicitly
            else:
                inner.wrong(key, "has no value" if isinstance(one, Text) else f"a text is expected, not {one.what}")
        return found

    def duration(self, name: str) -> str | None:
        text = self.text(name)
        found = None if text is None else duration(text)
        if text is not None and found is None:
            self.wrong(name, f"{shown(text)} is not {EXPECTED}")
        return found

    def named(self, name: str) -> dict[str, Fields]:
        """Return a mapping of names to mappings: sources, steps or sinks."""
        node = self.node(name)
        if node is None:
            return {}
        inner = Fields(node, self.problems, name)
        singular = name.removesuffix("s")
        found = {key: Fields(entry.node, self.problems, f"{singular} {key}") for key, entry in inner._entries.items()}
        for key, fields in found.items():
            fields.where = inner.location(key)
        return found
