"""Renders the parameters of functions and the fields of classes, with readable default values."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tools.reference.sources import AssignmentNode, FunctionNode, Module, NotFound, Sources

HIDDEN = "..."  # stands for a default that means nothing to a reader, such as the result of a computation
FACTORIES = {"dict": "{}", "list": "[]", "tuple": "()", "set": "set()", "frozenset": "frozenset()"}


@dataclass(frozen=True)
class Scope:
    """A module, with the others that it may import constants from."""

    sources: Sources
    module: Module

    def text(self, node: ast.expr | None) -> str:
        return "" if node is None else self.module.segment(node)


def parameters(scope: Scope, function: FunctionNode, *, is_bound: bool) -> tuple[str, ...]:
    """Return the parameters as written in a signature; the first one of a bound function is left out."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [*([None] * (len(positional) - len(given.defaults))), *given.defaults]
    shown = [parameter(scope, *pair) for pair in zip(positional, defaults, strict=True)]
    if given.posonlyargs:
        shown.insert(len(given.posonlyargs), "/")
    if is_bound:
        del shown[0]
    if given.vararg is not None:
        shown.append(f"*{parameter(scope, given.vararg)}")
    elif given.kwonlyargs:
        shown.append("*")
    shown += [parameter(scope, *pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        shown.append(f"**{parameter(scope, given.kwarg)}")
    return tuple(shown)


def parameter(scope: Scope, argument: ast.arg, default: ast.expr | None = None) -> str:
    """Return one parameter with its type and default."""
    return _declared(scope, argument.arg, argument.annotation, default)


def field_parameter(scope: Scope, field: ast.AnnAssign) -> str:
    """Return the constructor's parameter for a field of a dataclass or named tuple."""
    assert isinstance(field.target, ast.Name)
    return _declared(scope, field.target.id, field.annotation, field.value)


def parameter_names(function: FunctionNode) -> frozenset[str]:
    """Return the names of all parameters."""
    given = function.args
    variable = [one for one in (given.vararg, given.kwarg) if one is not None]
    return frozenset(one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, *variable))


def decorator_names(node: FunctionNode | ast.ClassDef) -> Iterator[str]:
    """Yield the decorators' names without module and arguments: `pytest.fixture(scope=…)` is `fixture`."""
    for decorator in node.decorator_list:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        yield function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def decorator_option(node: FunctionNode | ast.ClassDef, decorator: str, option: str) -> object:
    """Return the literal value of a decorator's keyword argument, or None if it is not given."""
    for name, call in zip(decorator_names(node), node.decorator_list, strict=True):
        if name == decorator and isinstance(call, ast.Call):
            for keyword in call.keywords:
                if keyword.arg == option:
                    return ast.literal_eval(keyword.value)
    return None


def default_text(scope: Scope, node: ast.expr) -> str:
    """Return a default as readers should see it: constants by value, `...` for anything that has to be computed."""
    if isinstance(node, ast.Name):
        return _constant_text(scope, node.id)
    if isinstance(node, ast.Call):
        factory = next((one.value for one in node.keywords if one.arg == "default_factory"), None)
        if isinstance(factory, ast.Name):
            return FACTORIES.get(factory.id, HIDDEN)
        is_plain = _is_dotted(node.func) and not node.keywords and all(_is_literal(one) for one in node.args)
        return scope.text(node) if is_plain else HIDDEN
    return scope.text(node) if _is_literal(node) or _is_dotted(node) else HIDDEN


def _constant_text(scope: Scope, name: str) -> str:
    """Return the value of a constant, or its name if the value is computed or defined elsewhere."""
    try:
        found = scope.sources.find(scope.module.name, name)
    except NotFound:
        return name
    if not isinstance(found.node, AssignmentNode) or found.node.value is None:
        return name
    shown = default_text(Scope(scope.sources, found.module), found.node.value)
    return name if shown == HIDDEN else shown


def _declared(scope: Scope, name: str, annotation: ast.expr | None, default: ast.expr | None) -> str:
    typed = name if annotation is None else f"{name}: {scope.text(annotation)}"
    if default is None:
        return typed
    return f"{typed}{'=' if annotation is None else ' = '}{default_text(scope, default)}"


def _is_dotted(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_dotted(node.value))


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_literal(node.left) and _is_literal(node.right)
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True
