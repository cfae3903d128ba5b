"""Reads YAML as a tree with locations. Every key has its line, duplicate keys are problems, and the expansion of aliases is limited."""

from __future__ import annotations

from pathlib import Path

import yaml

from headrace.pipelines.definitions.definition import DefinitionError, Place, Problem
from headrace.pipelines.definitions.tree import Entries, Entry, Items, Node, Text

FILE_BYTES_MAX = 1024 * 1024
NODES_MAX = 20_000  # limit with all aliases expanded
DEPTH_MAX = 20
_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"


def read_yaml(path: Path) -> list[Node]:
    """Return the documents of a file; raise DefinitionError with all problems of the YAML itself."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise DefinitionError([Problem(Place(path), f"cannot be read: {error.strerror}")]) from None
    if len(data) > FILE_BYTES_MAX:
        raise DefinitionError([Problem(Place(path), f"is longer than {FILE_BYTES_MAX} bytes")])
    return parse_yaml(data, path)


def parse_yaml(data: bytes | str, path: Path) -> list[Node]:
    try:
        documents = [one for one in yaml.compose_all(data, Loader=yaml.SafeLoader) if one is not None]
    except yaml.MarkedYAMLError as error:
        raise DefinitionError([_yaml_problem(error, path)]) from None
    except (yaml.YAMLError, ValueError) as error:  # the bytes are not text
        text = " ".join(str(error).split())
        raise DefinitionError([Problem(Place(path), f"is no YAML: {text}")]) from None
    except RecursionError:
        raise DefinitionError([Problem(Place(path), "is no pipeline: it is nested too deeply")]) from None
    if not documents:
        raise DefinitionError([Problem(Place(path), "is empty; a pipeline has name, sources and sinks")])
    tree = _Tree(path)
    nodes = [tree.convert(one, 0) for one in documents]
    if tree.problems:
        raise DefinitionError(tree.problems)
    return nodes


def _yaml_problem(error: yaml.MarkedYAMLError, path: Path) -> Problem:
    mark = error.problem_mark or error.context_mark
    text = " ".join(part for part in (error.context, error.problem) if part)
    text = text.replace("'\\t'", "a tab (indent with spaces)")
    return Problem(Place(path, mark.line + 1 if mark else 0), f"is no YAML: {text}")


class _Tree:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._nodes = 0
        self.problems: list[Problem] = []

    def convert(self, node: yaml.Node, depth: int) -> Node:
        where = self._location(node)
        self._nodes += 1
        if self._nodes > NODES_MAX or depth > DEPTH_MAX:
            what = f"has more than {NODES_MAX} parts" if self._nodes > NODES_MAX else "is nested too deeply"
            raise DefinitionError([Problem(where, f"{what}, aliases written out")])
        if isinstance(node, yaml.ScalarNode):
            begins = Place(self._path, where.line + 1) if node.style in ("|", ">") else where
            return Text(where, node.value, is_null=node.tag == _NULL, first_line=begins)
        if isinstance(node, yaml.SequenceNode):
            return Items(where, tuple(self.convert(one, depth + 1) for one in node.value))
        assert isinstance(node, yaml.MappingNode)
        return Entries(where, self._entries(node, depth))

    def _entries(self, node: yaml.MappingNode, depth: int) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key, value in node.value:
            where = self._location(key)
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem(where, "a key must be a plain name"))
            elif key.tag == _MERGE:
                merged = {**self._merged(value, where, depth), **merged}
            elif key.value in entries:
                first = entries[key.value].where.line
                self.problems.append(
                    Problem(where, f"{key.value} stands here a second time; the first is in line {first}")
                )
            else:
                entries[key.value] = Entry(where, self.convert(value, depth + 1))
        return {**merged, **entries}

    def _merged(self, node: yaml.Node, where: Place, depth: int) -> dict[str, Entry]:
        """Return the entries of `<<: *common`; earlier mappings take precedence over later ones."""
        found: dict[str, Entry] = {}
        for one in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            converted = self.convert(one, depth + 1)
            if isinstance(converted, Entries):
                found = {**converted.entries, **found}
            else:
                self.problems.append(Problem(where, "<< takes a mapping, or a list of them"))
        return found

    def _location(self, node: yaml.Node) -> Place:
        return Place(self._path, node.start_mark.line + 1)
