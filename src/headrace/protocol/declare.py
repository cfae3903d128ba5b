"""Declaration of messages: one class per message, whose fields are annotated with the facts of all versions.

    @request(3, "0-13", flexible="9+", listeners="broker")
    class MetadataRequest(Struct):
        class MetadataRequestTopic(Struct): ...

        topics: Annotated[list[MetadataRequestTopic] | None, Field(nullable="1+")] = []

A field without a Field exists in every version; `X | None` without `nullable` is nullable in all versions of the field.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from headrace.protocol.types import ALL_VERSIONS, NO_VERSIONS, Versions, Wire, parse_versions


class Kind(Enum):
    REQUEST = "request"
    RESPONSE = "response"
    HEADER = "header"
    DATA = "data"
    METADATA_RECORD = "metadata"
    COORDINATOR_KEY = "coordinator-key"
    COORDINATOR_VALUE = "coordinator-value"


class Facts(msgspec.Struct, frozen=True):
    """The facts of a whole message; `api_key` is also the type number of a stored record."""

    kind: Kind
    api_key: int | None
    versions: Versions
    flexible: Versions
    listeners: frozenset[str] = frozenset()
    latest_version_unstable: bool = False


class Struct(msgspec.Struct, repr_omit_defaults=True):
    """Base class of all messages and of their nested structs; only messages have facts."""

    facts: ClassVar[Facts]


class Field:
    """The facts of one field that differ from the defaults: in every version, untagged, not ignorable."""

    __slots__ = ("flexible", "ignorable", "nullable", "tag", "tagged", "versions")

    def __init__(
        self,
        versions: str | None = None,
        *,
        nullable: str | None = None,
        tag: int | None = None,
        tagged: str | None = None,
        ignorable: bool = False,
        flexible: bool = True,
    ) -> None:
        self.versions = parse_versions(versions) if versions else ALL_VERSIONS
        self.nullable = parse_versions(nullable) if nullable else ALL_VERSIONS
        self.tag = tag
        # A tagged field is tagged in all its versions, unless it was an ordinary field in older ones.
        self.tagged = NO_VERSIONS if tag is None else parse_versions(tagged) if tagged else self.versions
        self.ignorable = ignorable
        self.flexible = flexible


PLAIN = Field()


class ResolvedField(msgspec.Struct, frozen=True):
    """A field for the compiler; exactly one of `wire` and `struct` is the type of the field or its elements."""

    name: str
    wire: Wire | None
    struct: type[Struct] | None
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    ignorable: bool
    flexible: bool
    default: Any


M = TypeVar("M", bound=Struct)


def declare(facts: Facts) -> Callable[[type[M]], type[M]]:
    def attach(message: type[M]) -> type[M]:
        message.facts = facts
        return message

    return attach


def request(
    api_key: int, versions: str, *, listeners: str, flexible: str = "none", latest_version_unstable: bool = False
) -> Callable[[type[M]], type[M]]:
    return declare(
        Facts(
            Kind.REQUEST,
            api_key,
            parse_versions(versions),
            parse_versions(flexible),
            frozenset(listeners.split()),
            latest_version_unstable,
        )
    )


def response(api_key: int, versions: str, *, flexible: str = "none") -> Callable[[type[M]], type[M]]:
    return declare(Facts(Kind.RESPONSE, api_key, parse_versions(versions), parse_versions(flexible)))


def header(versions: str, *, flexible: str) -> Callable[[type[M]], type[M]]:
    return declare(Facts(Kind.HEADER, None, parse_versions(versions), parse_versions(flexible)))


def data(versions: str, *, flexible: str = "none") -> Callable[[type[M]], type[M]]:
    return declare(Facts(Kind.DATA, None, parse_versions(versions), parse_versions(flexible)))


def metadata_record(api_key: int, versions: str, *, flexible: str) -> Callable[[type[M]], type[M]]:
    return declare(Facts(Kind.METADATA_RECORD, api_key, parse_versions(versions), parse_versions(flexible)))


def coordinator_key(api_key: int, versions: str = "0") -> Callable[[type[M]], type[M]]:
    return declare(Facts(Kind.COORDINATOR_KEY, api_key, parse_versions(versions), NO_VERSIONS))


def coordinator_value(api_key: int, versions: str, *, flexible: str = "none") -> Callable[[type[M]], type[M]]:
    return declare(Facts(Kind.COORDINATOR_VALUE, api_key, parse_versions(versions), parse_versions(flexible)))


@cache
def fields_of(struct: type[Struct]) -> tuple[ResolvedField, ...]:
    """Return the fields in wire order."""
    hints = get_type_hints(struct, include_extras=True)
    defaults = struct()
    return tuple(_resolve(name, hints[name], getattr(defaults, name)) for name in struct.__struct_fields__)


def _resolve(name: str, hint: Any, default: Any) -> ResolvedField:
    facts = PLAIN
    if get_origin(hint) is Annotated:
        for extra in hint.__metadata__:
            if isinstance(extra, Field):
                facts = extra
                wire = [other for other in hint.__metadata__ if other is not extra]
                hint = Annotated[(hint.__origin__, *wire)] if wire else hint.__origin__
    optional = False
    if get_origin(hint) in (Union, UnionType):
        optional = NoneType in get_args(hint)
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    is_array = get_origin(hint) is list
    if is_array:
        (hint,) = get_args(hint)
    is_wire = get_origin(hint) is Annotated
    return ResolvedField(
        name=name,
        wire=hint.__metadata__[0] if is_wire else None,
        struct=None if is_wire else hint,
        is_array=is_array,
        versions=facts.versions,
        nullable=facts.nullable & facts.versions if optional else NO_VERSIONS,
        tag=facts.tag,
        tagged=facts.tagged,
        ignorable=facts.ignorable,
        flexible=facts.flexible,
        default=default,
    )
