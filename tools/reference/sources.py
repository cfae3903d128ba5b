"""Parsed source files: finds the definition of a name, following imports, and the comments next to it."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
AssignmentNode = ast.Assign | ast.AnnAssign
DefinitionNode = FunctionNode | ast.ClassDef | AssignmentNode
DIRECTIVES = ("type:", "noqa", "pragma:")  # comments for tools, not for readers


class NotFound(LookupError):
    """A module is not in the source folder, or does not define or import a name."""


class Module:
    """One source file."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.tree = ast.parse(text)
        self._text = text

    def segment(self, node: ast.AST) -> str:
        """Return the source of an expression on one line."""
        return " ".join((ast.get_source_segment(self._text, node) or "").split())

    def statements(self) -> Iterator[ast.stmt]:
        """Yield the top-level statements, including those under `if TYPE_CHECKING`."""
        yield from _flattened(self.tree.body)

    def comment(self, node: ast.stmt) -> str:
        """Return the comment behind a statement, or else the comment lines directly above it."""
        assert node.end_lineno is not None
        behind = self._comments.get(node.end_lineno)
        if behind is not None:
            return behind
        above: list[str] = []
        line = node.lineno - 1
        while line in self._comments and line in self._comment_lines:
            above.insert(0, self._comments[line])
            line -= 1
        return " ".join(above)

    @cached_property
    def _comments(self) -> dict[int, str]:
        found = {}
        for token in tokenize.generate_tokens(io.StringIO(self._text).readline):
            text = token.string.lstrip("# ")
            if token.type == tokenize.COMMENT and not text.startswith(DIRECTIVES):
                found[token.start[0]] = text
        return found

    @cached_property
    def _comment_lines(self) -> frozenset[int]:
        lines = enumerate(self._text.splitlines(), start=1)
        return frozenset(number for number, line in lines if line.lstrip().startswith("#"))


@dataclass(frozen=True)
class Definition:
    """A definition and the module that has it."""

    module: Module
    node: DefinitionNode


class Sources:
    """The modules below a source folder, parsed on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[str, Module] = {}

    def module(self, name: str) -> Module:
        """Return a module by its dotted name. Raise NotFound if it is not in the folder."""
        if name not in self._modules:
            path = self._folder.joinpath(*name.split("."))
            for file in (path / "__init__.py", path.with_suffix(".py")):
                if file.exists():
                    self._modules[name] = Module(name, file.read_text(encoding="utf-8"))
                    break
            else:
                raise NotFound(f"there is no module {name} in {self._folder}")
        return self._modules[name]

    def find(self, module_name: str, name: str) -> Definition:
        """Return the definition of a module's name, in that module or where it is imported from."""
        module = self.module(module_name)
        for statement in module.statements():
            if isinstance(statement, ast.ImportFrom) and statement.module is not None:
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        return self.find(statement.module, alias.name)
            elif isinstance(statement, DefinitionNode) and defined_name(statement) == name:
                return Definition(module, statement)
        raise NotFound(f"{module_name} neither defines nor imports {name}")


def defined_name(node: DefinitionNode) -> str:
    """Return the name that a statement defines, or nothing if it assigns to anything but one name."""
    if isinstance(node, FunctionNode | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Assign) and len(node.targets) != 1:
        return ""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""


def public_names(module: Module) -> list[str]:
    """Return the names in a module's `__all__`."""
    for statement in module.statements():
        if isinstance(statement, ast.Assign) and defined_name(statement) == "__all__":
            return [str(name) for name in ast.literal_eval(statement.value)]
    raise NotFound(f"{module.name} has no __all__")


def _flattened(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        if isinstance(statement, ast.If):
            yield from _flattened([*statement.body, *statement.orelse])
        else:
            yield statement
