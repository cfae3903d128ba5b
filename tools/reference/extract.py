"""Reads the entries of the reference from syntax trees."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence

from tools.reference.model import Alias, Attribute, Class, ClassKind, Entry, Fixture, Function, Signature
from tools.reference.signatures import (
    Scope,
    decorator_names,
    decorator_option,
    default_text,
    field_parameter,
    parameter_names,
    parameters,
)
from tools.reference.sources import AssignmentNode, FunctionNode, Sources, defined_name

CONSTRUCTOR = "__init__"
ENUMS = ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")
WITH_STATEMENTS = {"__enter__": "with", "__aenter__": "async with"}
PREFIXES = {"classmethod": "classmethod", "staticmethod": "static"}
PROPERTIES = ("property", "cached_property")
GENERATORS = ("Iterator", "Generator")


def entry(sources: Sources, module_name: str, name: str) -> Entry:
    """Return the entry for a public name. Raise NotFound if the module does not have it."""
    found = sources.find(module_name, name)
    scope = Scope(sources, found.module)
    if isinstance(found.node, ast.ClassDef):
        return _class(scope, found.node)
    if isinstance(found.node, AssignmentNode):
        return Alias(name, scope.text(found.node.value), found.module.comment(found.node))
    if "fixture" in decorator_names(found.node):
        return _fixture(scope, found.node)
    return _function(scope, [found.node], is_method=False)


def _doc(node: FunctionNode | ast.ClassDef | None) -> str:
    text = None if node is None else ast.get_docstring(node, clean=False)
    return "" if text is None else inspect.cleandoc(text)


def _is_public(name: str) -> bool:
    return not name.startswith("_")


# --- functions


def _function(scope: Scope, nodes: Sequence[FunctionNode], *, is_method: bool) -> Function:
    """Return a function from its definitions: overloads first, the implementation last."""
    overloads = [node for node in nodes if "overload" in decorator_names(node)]
    signatures = tuple(_signature(scope, node, is_method=is_method) for node in overloads or nodes[-1:])
    names = frozenset[str]().union(*(parameter_names(node) for node in nodes))
    return Function(nodes[-1].name, signatures, _doc(nodes[-1]), names)


def _signature(scope: Scope, node: FunctionNode, *, is_method: bool) -> Signature:
    decorators = set(decorator_names(node))
    returns = scope.text(node.returns)
    if is_method and decorators.intersection(PROPERTIES):
        return Signature(node.name, None, returns, "property")
    prefixes = [PREFIXES[one] for one in PREFIXES if one in decorators]
    if isinstance(node, ast.AsyncFunctionDef):
        prefixes.append("async")
    is_bound = is_method and "staticmethod" not in decorators
    return Signature(node.name, parameters(scope, node, is_bound=is_bound), returns, " ".join(prefixes))


def _fixture(scope: Scope, node: FunctionNode) -> Fixture:
    value = node.returns
    if isinstance(value, ast.Subscript) and scope.text(value.value) in GENERATORS:
        value = value.slice
    is_given = decorator_option(node, "fixture", "scope")
    return Fixture(node.name, scope.text(value), str(is_given or "function"), _doc(node))


# --- classes


def _class(scope: Scope, node: ast.ClassDef) -> Class:
    kind = _kind(scope, node)
    by_name: dict[str, list[FunctionNode]] = {}
    for statement in node.body:
        if isinstance(statement, FunctionNode):
            by_name.setdefault(statement.name, []).append(statement)
    constructor = by_name[CONSTRUCTOR][-1] if CONSTRUCTOR in by_name else None
    return Class(
        name=node.name,
        kind=kind,
        signature=_class_signature(scope, node, kind, constructor),
        bases=tuple(text for base in node.bases if (text := scope.text(base)) not in (*ENUMS, "NamedTuple")),
        doc="\n\n".join(filter(None, (_doc(node), _doc(constructor)))),
        parameter_names=frozenset() if constructor is None else parameter_names(constructor),
        attributes=tuple(_attributes(scope, node, kind, constructor)),
        methods=tuple(_methods(scope, by_name)),
        with_statements=tuple(text for name, text in WITH_STATEMENTS.items() if name in by_name),
    )


def _kind(scope: Scope, node: ast.ClassDef) -> ClassKind:
    bases = [scope.text(base) for base in node.bases]
    if "NamedTuple" in bases:
        return ClassKind.NAMED_TUPLE
    if any(base in ENUMS for base in bases):
        return ClassKind.ENUM
    return ClassKind.DATACLASS if "dataclass" in decorator_names(node) else ClassKind.PLAIN


def _class_signature(scope: Scope, node: ast.ClassDef, kind: ClassKind, constructor: FunctionNode | None) -> Signature:
    shown: tuple[str, ...] | None = None
    if constructor is not None:
        shown = parameters(scope, constructor, is_bound=True)
    elif kind in (ClassKind.NAMED_TUPLE, ClassKind.DATACLASS):
        shown = tuple(field_parameter(scope, field) for field in _fields(node))
        if decorator_option(node, "dataclass", "kw_only"):
            shown = ("*", *shown)
    return Signature(node.name, shown, prefix="class")


def _methods(scope: Scope, by_name: dict[str, list[FunctionNode]]) -> Iterator[Function]:
    """Yield public methods, and special methods that have a docstring."""
    for name, nodes in by_name.items():
        getters = [node for node in nodes if not {"setter", "deleter"}.intersection(decorator_names(node))]
        is_documented = name.startswith("__") and name != CONSTRUCTOR and _doc(getters[-1])
        if _is_public(name) or is_documented:
            yield _function(scope, getters, is_method=True)


def _fields(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement


def _attributes(
    scope: Scope, node: ast.ClassDef, kind: ClassKind, constructor: FunctionNode | None
) -> Iterator[Attribute]:
    """Yield the public attributes: enum members, annotated names of the class, and those that the constructor sets."""
    for statement in node.body:
        if not isinstance(statement, AssignmentNode) or not _is_public(defined_name(statement) or "_"):
            continue
        name, comment = defined_name(statement), scope.module.comment(statement)
        if isinstance(statement, ast.AnnAssign):
            yield Attribute(name, scope.text(statement.annotation), comment=comment)
        elif kind is ClassKind.ENUM:
            yield Attribute(name, value=default_text(scope, statement.value), comment=comment)
    if constructor is not None:
        yield from _set_attributes(scope, constructor)


def _set_attributes(scope: Scope, constructor: FunctionNode) -> Iterator[Attribute]:
    """Yield the attributes that a constructor sets, with their types where annotations or literals show them."""
    arguments = (*constructor.args.posonlyargs, *constructor.args.args, *constructor.args.kwonlyargs)
    types = {argument.arg: scope.text(argument.annotation) for argument in arguments}
    for statement in ast.walk(constructor):
        if not isinstance(statement, AssignmentNode):
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if not (isinstance(target, ast.Attribute) and scope.text(target.value) == "self" and _is_public(target.attr)):
            continue
        type_text = ""
        if isinstance(statement, ast.AnnAssign):
            type_text = scope.text(statement.annotation)
        elif isinstance(statement.value, ast.Name):
            type_text = types.get(statement.value.id, "")
        elif isinstance(statement.value, ast.Constant) and statement.value.value is not None:
            type_text = type(statement.value.value).__name__
        yield Attribute(target.attr, type_text, comment=scope.module.comment(statement))
