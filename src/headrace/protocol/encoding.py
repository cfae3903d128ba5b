"""Generates the encoder of one message in one version as straight-line source code.

Adjacent fixed-width fields become one pack, together with the length, count or (empty) tag section that follows if it takes
one byte. Pieces are collected in a list that is joined once; in the `parts` form records remain separate.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from headrace.base.ids import ZERO_UUID
from headrace.protocol import primitives
from headrace.protocol.declare import ResolvedField, Struct, fields_of
from headrace.protocol.emit import Source, failing_line, tagged_fields, untagged_fields
from headrace.protocol.errors import EncodeError
from headrace.protocol.types import Wire

NUMBER_WRITERS = {code: primitives.number_writer(code) for code in "?bhiqHId"}


def compile_encoder(message: type[Struct], version: int, *, parts: bool) -> Callable[..., Any]:
    encoder = _Encoder(message, version, parts)
    encoder.write(message)
    form = "parts of" if parts else "encode"
    return encoder.source.load(f"{form} {message.__name__} v{version}", "encode")


def _failure(title: str, error: Exception) -> EncodeError:
    return EncodeError(f"{title}: {error} (in {failing_line(error)})")


class _Encoder:
    def __init__(self, message: type[Struct], version: int, parts: bool) -> None:
        self.source = Source()
        self.version = version
        self.flexible = version in message.facts.flexible
        self.title = f"{message.__name__} v{version}"
        self.parts = parts
        self.run: list[tuple[str, str]] = []
        self.with_tags: list[type[Struct]] = []
        faults = (struct.error, AttributeError, TypeError, ValueError, OverflowError)
        self.source.names.update(
            primitives.FOR_GENERATED_CODE, _failure=_failure, _FAULTS=faults, EncodeError=EncodeError
        )

    def write(self, message: type[Struct]) -> None:
        source = self.source
        with source.block("def encode(message):"):
            with source.block("try:"):
                source.line("out = []")
                source.line("put = out.append")
                if self.parts:
                    source.line("parts = []")
                self.struct(message, "message")
                self.flush()
                if self.parts:
                    source.line("if out: parts.append(b''.join(out))")
                    source.line("return parts")
                else:
                    source.line("return b''.join(out)")
            with source.block("except _FAULTS as error:"):
                source.line(f"raise _failure({self.title!r}, error) from error")
        for struct_class in self.with_tags:  # grows during the loop: structs in tagged fields may have tags
            self.tag_function(struct_class)

    def pack(self, *extra: tuple[str, str]) -> str:
        run = [*self.run, *extra]
        codes = "".join(code for code, _ in run)
        if not codes.strip("x"):
            return repr(bytes(len(codes)))
        arguments = ", ".join(expression for _, expression in run if expression)
        return f"{self.source.bind_pack(codes)}({arguments})"

    def flush(self) -> None:
        if self.run:
            self.source.line(f"put({self.pack()})")
            self.run.clear()

    def put_uvarint(self, variable: str, writer: str = "uvarint") -> None:
        source = self.source
        if not self.run:
            source.line(f"put(UVARINT_OF_ONE_BYTE[{variable}] if {variable} < 128 else {writer}({variable}))")
            return
        with source.block(f"if {variable} < 128:"):
            source.line(f"put({self.pack(('B', variable))})")
        with source.block("else:"):
            source.line(f"put({self.pack()})")
            source.line(f"put({writer}({variable}))")
        self.run.clear()

    def struct(self, struct_class: type[Struct], owner: str) -> None:
        self.refuse_absent(struct_class, owner)
        for field in untagged_fields(struct_class, self.version):
            self.value(field, f"{owner}.{field.name}")
        if not self.flexible:
            return
        tagged = tagged_fields(struct_class, self.version)
        if not tagged:
            self.run.append(("x", ""))
            return
        if struct_class not in self.with_tags:
            self.with_tags.append(struct_class)
        with self.source.block(f"if {' and '.join(self.is_default(field, owner) for field in tagged)}:"):
            self.source.line(f"put({self.pack(('x', ''))})")
        with self.source.block("else:"):
            self.flush()
            self.source.line(f"tags_{struct_class.__name__}({owner}, put)")
        self.run.clear()

    def refuse_absent(self, struct_class: type[Struct], owner: str) -> None:
        for field in fields_of(struct_class):
            if self.version not in field.versions and not field.ignorable:
                with self.source.block(f"if not ({self.is_default(field, owner)}):"):
                    what = f"{self.title}: {struct_class.__name__}.{field.name} is set, which only versions "
                    self.source.line(f"raise EncodeError({what + str(field.versions) + ' carry'!r})")

    def is_default(self, field: ResolvedField, owner: str) -> str:
        value = f"{owner}.{field.name}"
        default = field.default
        if default is None:
            return f"{value} is None"
        if isinstance(default, Struct):
            return f"{value} == {self.source.bind('default_' + type(default).__name__, _default(type(default)))}"
        if default == ZERO_UUID:
            return f"{value} == {self.source.bind('ZERO_UUID', ZERO_UUID)}"
        return f"{value} == {default!r}"

    def value(self, field: ResolvedField, expression: str, *, tagged: bool = False) -> None:
        nullable = self.version in field.nullable
        compact = self.flexible and field.flexible
        if field.is_array:
            self.array(field, expression, compact, nullable)
        elif field.struct:
            owner = self.source.fresh("m")
            self.source.line(f"{owner} = {expression}")
            if nullable:
                # The marker of a present struct is 1; that of null is a varint 0 in a tagged field, else an int8 of -1.
                self.nullable_struct(field.struct, owner, null="0" if tagged else "-1")
            else:
                self.struct(field.struct, owner)
        elif field.wire:
            if field.wire.name == "uuid":
                self.run.append(("16s", f"check_uuid({expression})"))
            elif field.wire.code:
                self.run.append((field.wire.code, expression))
            elif field.wire.name == "records":
                self.records(expression, compact, nullable)
            else:
                self.prefixed(field.wire, expression, compact, nullable)

    def nullable_struct(self, struct_class: type[Struct], owner: str, null: str) -> None:
        before = list(self.run)
        with self.source.block(f"if {owner} is None:"):
            self.source.line(f"put({self.pack(('b', null))})")
        with self.source.block("else:"):
            self.run = [*before, ("b", "1")]
            self.struct(struct_class, owner)
            self.flush()
        self.run.clear()

    def prefixed(self, wire: Wire, expression: str, compact: bool, nullable: bool) -> None:
        source = self.source
        data, length = source.fresh("s"), source.fresh("n")
        is_string = wire.name == "string"
        source.line(f"{data} = {expression}")
        encoded = f"{data} = {data}.encode(); " if is_string else ""
        measured = f"{encoded}{length} = len({data})" + (" + 1" if compact else "")
        if nullable:
            with source.block(f"if {data} is None:"):
                source.line(f"{data} = b''; {length} = {0 if compact else -1}")
            with source.block("else:"):
                source.line(measured)
        else:
            source.line(measured)
        if compact:
            self.put_uvarint(length, "string_uvarint" if is_string else "uvarint")
        else:
            self.run.append(("h" if is_string else "i", length))
            self.flush()
        source.line(f"put({data})")

    def records(self, expression: str, compact: bool, nullable: bool) -> None:
        source = self.source
        data, length = source.fresh("records"), source.fresh("n")
        extra = " + 1" if compact else ""
        source.line(f"{data} = {expression}")
        if nullable:
            with source.block(f"if {data} is None:"):
                source.line(f"{data} = (); {length} = {0 if compact else -1}")
            choice = "elif"
        else:
            choice = "if"
        with source.block(f"{choice} isinstance({data}, (list, tuple)):"):
            source.line(f"{length} = sum(map(len, {data})){extra}")
        with source.block("else:"):
            source.line(f"{length} = len({data}){extra}; {data} = ({data},)")
        if compact:
            self.put_uvarint(length)
        else:
            self.run.append(("i", length))
            self.flush()
        if self.parts:
            with source.block(f"if {data}:"):
                source.line("parts.append(b''.join(out))")
                source.line("out.clear()")
                source.line(f"parts.extend({data})")
        else:
            source.line(f"out.extend({data})")

    def array(self, field: ResolvedField, expression: str, compact: bool, nullable: bool) -> None:
        source = self.source
        values, count = source.fresh(field.name + "_"), source.fresh("n")
        source.line(f"{values} = {expression}")
        measured = f"{count} = len({values})" + (" + 1" if compact else "")
        if nullable:
            with source.block(f"if {values} is None:"):
                source.line(f"{values} = (); {count} = {0 if compact else -1}")
            with source.block("else:"):
                source.line(measured)
        else:
            source.line(measured)
        if compact:
            self.put_uvarint(count)
        else:
            self.run.append(("i", count))
            self.flush()
        if field.wire and field.wire.code:
            name = field.wire.name
            writer = f"write_{name}s"
            if name != "uuid":
                source.bind(writer, NUMBER_WRITERS[field.wire.code])
            source.line(f"put({writer}({values}))")
            return
        element = source.fresh("m")
        with source.block(f"for {element} in {values}:"):
            if field.struct:
                self.struct(field.struct, element)
            else:
                assert field.wire
                self.prefixed(field.wire, element, compact, nullable=False)
            self.flush()

    def tag_function(self, struct_class: type[Struct]) -> None:
        source = self.source
        with source.block(f"def tags_{struct_class.__name__}(message, put_outside):"):
            source.line("count = 0")
            source.line("pieces = []")
            for field in tagged_fields(struct_class, self.version):
                assert not (field.wire and field.wire.name == "records")
                with source.block(f"if not ({self.is_default(field, 'message')}):"):
                    source.line("count += 1")
                    source.line("out = []")
                    source.line("put = out.append")
                    self.value(field, f"message.{field.name}", tagged=True)
                    self.flush()
                    source.line("data = b''.join(out)")
                    source.line(f"pieces += {primitives.uvarint(field.tag or 0)!r}, uvarint(len(data)), data")
            source.line("put_outside(uvarint(count) + b''.join(pieces))")


_DEFAULTS: dict[type[Struct], Struct] = {}


def _default(struct_class: type[Struct]) -> Struct:
    return _DEFAULTS.setdefault(struct_class, struct_class())
