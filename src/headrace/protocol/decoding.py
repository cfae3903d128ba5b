"""Generates the decoder of one message in one version as straight-line source code.

Adjacent fixed-width fields become one unpack_from, together with the first byte of the length, count or tag section that
follows. `p` is the position; `ahead` is the number of bytes after `p` that are already read, so that `p` moves rarely.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from headrace.base.ids import ZERO_UUID
from headrace.protocol import primitives
from headrace.protocol.declare import ResolvedField, Struct, fields_of
from headrace.protocol.emit import Source, failing_line, least_size, least_wire_size, tagged_fields, untagged_fields
from headrace.protocol.errors import DecodeError
from headrace.protocol.types import Wire

NUMBER_READERS = {code: primitives.number_reader(code) for code in "?bhiqHId"}
WIDTHS = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}


def compile_decoder(message: type[Struct], version: int) -> Callable[..., Any]:
    decoder = _Decoder(message, version)
    decoder.write(message)
    return decoder.source.load(f"decode {message.__name__} v{version}", "decode_from")


def has_records(struct_class: type[Struct], version: int) -> bool:
    for field in fields_of(struct_class):
        if version not in field.versions:
            continue
        if field.struct and has_records(field.struct, version):
            return True
        if field.wire and field.wire.name == "records":
            return True
    return False


def _failure(title: str, error: Exception) -> DecodeError:
    what = "the bytes end too early" if isinstance(error, IndexError) else str(error)
    return DecodeError(f"{title}: {what} (in {failing_line(error)})")


def _at(ahead: int) -> str:
    return f"p + {ahead}" if ahead else "p"


class _Decoder:
    def __init__(self, message: type[Struct], version: int) -> None:
        self.source = Source()
        self.version = version
        self.flexible = version in message.facts.flexible
        self.title = f"{message.__name__} v{version}"
        self.run: list[tuple[str, str]] = []
        self.ahead = 0
        self.with_tags: list[type[Struct]] = []
        self.source.names.update(
            primitives.FOR_GENERATED_CODE, _failure=_failure, _FAULTS=(struct.error, IndexError, ValueError)
        )

    def write(self, message: type[Struct]) -> None:
        source = self.source
        with source.block("def decode_from(buffer, p):"):
            with source.block("try:"):
                source.line("size = len(buffer)")
                if has_records(message, self.version):
                    source.line("view = memoryview(buffer)")
                result = self.struct(message)
                self.settle()
                source.line("if p > size: raise IndexError")
                source.line(f"return {result}, p")
            with source.block("except _FAULTS as error:"):
                source.line(f"raise _failure({self.title!r}, error) from error")
        for struct_class in self.with_tags:  # grows during the loop: structs in tagged fields may have tags
            self.tag_function(struct_class)

    def read(self, code: str, stem: str) -> str:
        variable = self.source.fresh(stem)
        self.run.append((code, variable))
        return variable

    def flush(self) -> None:
        if not self.run:
            return
        position = _at(self.ahead)
        codes = "".join(code for code, _ in self.run)
        variables = ", ".join(variable for _, variable in self.run)
        if codes == "B":
            self.source.line(f"{variables} = buffer[{position}]")
        else:
            comma = "," if len(self.run) == 1 else ""
            self.source.line(f"{variables}{comma} = {self.source.bind_unpack(codes)}(buffer, {position})")
        self.ahead += sum(WIDTHS[code] for code, _ in self.run)
        self.run.clear()

    def settle(self) -> None:
        self.flush()
        if self.ahead:
            self.source.line(f"p += {self.ahead}")
            self.ahead = 0

    def struct(self, struct_class: type[Struct]) -> str:
        values = {field.name: self.value(field) for field in untagged_fields(struct_class, self.version)}
        tags = self.read("B", "tags") if self.flexible else ""
        self.flush()
        result = self.source.fresh("m")
        arguments = self.arguments(struct_class, values)
        self.source.line(f"{result} = {self.source.bind_struct(struct_class)}({', '.join(arguments)})")
        if tags:
            self.settle()
            if tagged_fields(struct_class, self.version):
                if struct_class not in self.with_tags:
                    self.with_tags.append(struct_class)
                self.source.line(f"if {tags}: p = tags_{struct_class.__name__}(buffer, p, {tags}, {result})")
            else:
                self.source.line(f"if {tags}: p = skip_tags(buffer, p, {tags})")
        return result

    def arguments(self, struct_class: type[Struct], values: dict[str, str]) -> list[str]:
        """Return positional arguments, msgspec's fastest form; trailing defaults are left to the constructor."""
        fields = list(fields_of(struct_class))
        while fields and fields[-1].name not in values:
            fields.pop()
        return [values.get(field.name) or self.default(field) for field in fields]

    def default(self, field: ResolvedField) -> str:
        if isinstance(field.default, Struct):
            return f"{self.source.bind_struct(type(field.default))}()"
        return self.source.bind("ZERO_UUID", ZERO_UUID) if field.default == ZERO_UUID else repr(field.default)

    def value(self, field: ResolvedField, *, tagged: bool = False) -> str:
        if field.is_array:
            return self.array(field)
        nullable = self.version in field.nullable
        if field.struct:
            return self.nullable_struct(field.struct, tagged) if nullable else self.struct(field.struct)
        assert field.wire
        if field.wire.code:
            return self.read(field.wire.code, field.name + "_")
        compact = self.flexible and field.flexible
        if field.wire.name == "records":
            return self.records(compact, nullable)
        return self.prefixed(field.wire, compact, nullable)

    def nullable_struct(self, struct_class: type[Struct], tagged: bool) -> str:
        """Read a marker and the struct: an int8, negative for null, or in a tagged field a varint, 0 for null."""
        if tagged:
            marker = self.count(compact=True)
        else:
            marker = self.read("b", "marker")
            self.settle()
        result = self.source.fresh("maybe")
        with self.source.block(f"if {marker} < 0:"):
            self.source.line(f"{result} = None")
        with self.source.block("else:"):
            present = self.struct(struct_class)
            self.settle()
            self.source.line(f"{result} = {present}")
        return result

    def prefixed(self, wire: Wire, compact: bool, nullable: bool) -> str:
        """Read a string or bytes; one-byte compact lengths are decoded inline, longer ones by a function call."""
        source = self.source
        length = self.read("B" if compact else "h" if wire.name == "string" else "i", "n")
        self.flush()
        start = _at(self.ahead)
        value, end = source.fresh("s"), source.fresh("e")
        with source.block(f"if 0 < {length} < 128:" if compact else f"if {length} >= 0:"):
            source.line(f"{end} = {_at(self.ahead - compact)} + {length}")
            piece = f"buffer[{start}:{end}]"
            source.line(f"{value} = str({piece}, 'utf-8')" if wire.name == "string" else f"{value} = bytes({piece})")
            source.line(f"p = {end}")
        if nullable:
            with source.block(f"elif {length} == 0:" if compact else "else:"):
                source.line(f"{value} = None")
                source.line(f"p += {self.ahead}")
        if compact:
            source.line(f"else: {value}, p = read_compact_{wire.name}(buffer, {_at(self.ahead - 1)})")
        elif not nullable:
            source.line(f"else: raise null_refused({start})")
        self.ahead = 0
        return value

    def records(self, compact: bool, nullable: bool) -> str:
        source = self.source
        length = self.count(compact)
        value, end = source.fresh("records"), source.fresh("e")
        with source.block(f"if {length} >= 0:"):
            source.line(f"{end} = p + {length}")
            source.line(f"{value} = view[p:{end}]")
            source.line(f"p = {end}")
        with source.block("else:"):
            source.line(f"{value} = None" if nullable else "raise null_refused(p)")
        return value

    def count(self, compact: bool) -> str:
        """Read a count or length, -1 for null, and move the position after it."""
        count = self.read("B" if compact else "i", "n")
        self.settle()
        if compact:
            self.source.line(f"if {count} > 127: {count}, p = read_uvarint(buffer, p - 1)")
            self.source.line(f"{count} -= 1")
        return count

    def array(self, field: ResolvedField) -> str:
        source = self.source
        count = self.count(self.flexible and field.flexible)
        result = source.fresh(field.name + "_")
        if self.version in field.nullable:
            with source.block(f"if {count} < 0:"):
                source.line(f"{result} = None")
            with source.block("else:"):
                self.elements(field, count, result)
        else:
            source.line(f"if {count} < 0: raise null_refused(p)")
            self.elements(field, count, result)
        return result

    def elements(self, field: ResolvedField, count: str, result: str) -> None:
        source = self.source
        if field.struct:
            least = max(1, least_size(field.struct, self.version, self.flexible))
        else:
            least = least_wire_size(field, self.flexible)
        needed = count if least == 1 else f"{count} * {least}"
        source.line(f"if {needed} > size - p: raise count_refused({count}, size - p)")
        if field.wire and field.wire.code:
            if field.wire.name == "uuid":
                reader = "read_uuids"
            else:
                reader = source.bind(f"read_{field.wire.name}s", NUMBER_READERS[field.wire.code])
            source.line(f"{result} = {reader}({count}, buffer, p)")
            source.line(f"p += {needed}")
            return
        source.line(f"{result} = []")
        with source.block(f"for _ in range({count}):"):
            if field.struct:
                element = self.struct(field.struct)
            else:
                assert field.wire
                element = self.prefixed(field.wire, self.flexible, nullable=False)
            self.settle()
            source.line(f"{result}.append({element})")

    def tag_function(self, struct_class: type[Struct]) -> None:
        source = self.source
        with source.block(f"def tags_{struct_class.__name__}(buffer, p, count, message):"):
            source.line("size = len(buffer)")
            source.line("if count > 127: count, p = read_uvarint(buffer, p - 1)")
            source.line("tag = -1")
            with source.block("for _ in range(count):"):
                source.line("tag, p, end = read_tag(buffer, p, tag)")
                choice = "if"
                for field in tagged_fields(struct_class, self.version):
                    assert not (field.wire and field.wire.name == "records")
                    with source.block(f"{choice} tag == {field.tag}:"):
                        value = self.value(field, tagged=True)
                        self.settle()
                        source.line(f"message.{field.name} = {value}")
                    choice = "elif"
                with source.block("else:"):
                    source.line("p = end")
                source.line("if p != end: raise tag_width_refused(tag, p, end)")
            source.line("return p")
