"""Options for decoding keys and values: `value.format` and related options, the registry, and the handling of bad records."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from headrace.base.errors import ConfigError
from headrace.options.table import Kind, Option, Value

SIDES = ("key", "value")
ERROR_COLUMN = "_error"


class Format(Enum):
    RAW = "raw"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"

    @property
    def has_schema(self) -> bool:
        return self not in (Format.RAW, Format.STRING)


class OnBadRecord(Enum):
    FAIL = "fail"
    DEAD_LETTER = "deadletter"
    NULL = "null"
    SKIP = "skip"


def _side_options(side: str) -> tuple[Option, ...]:
    formats = tuple(one.value for one in Format)
    return (
        Option(f"{side}.format", Kind.STRING, "raw", f"what a {side} holds", one_of=formats),
        Option(f"{side}.schema", Kind.STRING, None, "a schema: Spark's DDL or JSON Schema for json, JSON for avro"),
        Option(
            f"{side}.schema.file", Kind.STRING, None, "or a file on the driver's machine; for protobuf, descriptors"
        ),
        Option(f"{side}.subject", Kind.STRING, None, f"at the registry, if not <topic>-{side}"),
        Option(f"{side}.message", Kind.STRING, None, "the full name of protobuf's message, if not the first one"),
        Option(
            f"{side}.columns", Kind.STRING, "struct", "one column, or one for each field", one_of=("struct", "flat")
        ),
        Option(f"{side}.prefix", Kind.STRING, "", "of the names of flat columns"),
        Option(
            f"{side}.framing",
            Kind.STRING,
            None,
            "whether an id of the registry stands before the data; default: if a registry is set",
            one_of=("confluent", "none"),
        ),
    )


DECODING_OPTIONS = (
    *_side_options("key"),
    *_side_options("value"),
    Option("schema.registry.url", Kind.LIST, [], "addresses of a schema registry, tried one after the other"),
    Option("schema.registry.basic.auth.user.info", Kind.PASSWORD, None, "user:password"),
    Option("schema.registry.ssl.ca.location", Kind.STRING, None, "certificates to trust, as PEM"),
    Option("schema.registry.timeout.ms", Kind.INT, 10_000, "time limit of a request, including retries", at_least=1),
    Option(
        "onBadRecord",
        Kind.STRING,
        "fail",
        "what becomes of records that cannot be decoded",
        one_of=tuple(one.value for one in OnBadRecord),
    ),
    Option("deadletter.topic", Kind.STRING, None, "where they go, if onBadRecord is deadletter"),
)


class RegistrySettings(Struct, frozen=True):
    urls: tuple[str, ...]
    user_info: str | None = None
    ca_location: str | None = None
    timeout_s: float = 10.0


class SideOptions(Struct, frozen=True):
    side: str
    format: Format
    schema: str | None = None
    schema_file: str | None = None
    subject: str | None = None
    message: str | None = None
    flat: bool = False
    prefix: str = ""
    framed: bool = False


class DecodingOptions(Struct, frozen=True):
    sides: tuple[SideOptions, ...]  # the sides that are decoded
    registry: RegistrySettings | None
    on_bad: OnBadRecord
    dead_letter_topic: str | None


def parse_decoding(values: Mapping[str, Value], topics: tuple[str, ...]) -> DecodingOptions | None:
    """Parse the options; return None if keys and values are raw.

    `topics` are those known by name, from which the default subjects at the registry are derived.
    """
    registry = _registry(values)
    sides = tuple(
        side
        for side in (_side(values, name, registry is not None, topics) for name in SIDES)
        if side.format is not Format.RAW
    )
    on_bad = OnBadRecord(values["onBadRecord"])
    topic = values["deadletter.topic"]
    if on_bad is OnBadRecord.DEAD_LETTER and not topic:
        raise ConfigError("onBadRecord=deadletter needs deadletter.topic, which says where they go")
    if on_bad is not OnBadRecord.DEAD_LETTER and topic:
        raise ConfigError("deadletter.topic has no effect without onBadRecord=deadletter")
    if topic in topics:
        raise ConfigError(
            f"deadletter.topic={topic} is read by this query itself: its records would come back for ever"
        )
    if not sides:
        return None
    return DecodingOptions(sides, registry, on_bad, None if topic is None else str(topic))


def _side(values: Mapping[str, Value], side: str, has_registry: bool, topics: tuple[str, ...]) -> SideOptions:
    of: dict[str, Any] = {name: values[f"{side}.{name}"] for name in _SIDE_NAMES}
    kind = Format(of["format"])
    if not kind.has_schema:
        for name in ("schema", "schema.file", "subject", "message", "framing"):
            if of[name] is not None:
                raise ConfigError(f"{side}.{name} has no meaning with {side}.format={kind.value}")
        if of["columns"] == "flat":
            raise ConfigError(f"{side}.columns=flat needs a {side}.format with fields")
        return SideOptions(side, kind)
    if of["schema"] is not None and of["schema.file"] is not None:
        raise ConfigError(f"only one of {side}.schema and {side}.schema.file can be set")
    has_schema = of["schema"] is not None or of["schema.file"] is not None
    if not has_schema and not has_registry:
        raise ConfigError(
            f"{side}.format={kind.value} needs a schema: {side}.schema, {side}.schema.file or schema.registry.url"
        )
    if of["framing"] == "confluent" and not has_registry:
        raise ConfigError(f"{side}.framing=confluent needs schema.registry.url")
    if of["prefix"] and of["columns"] != "flat":
        raise ConfigError(f"{side}.prefix has no meaning without {side}.columns=flat")
    subject = of["subject"]
    if not has_schema and subject is None:
        if len(topics) != 1:
            raise ConfigError(f"{side}.subject must be set when not exactly one topic is read by its name")
        subject = f"{topics[0]}-{side}"
    return SideOptions(
        side=side,
        format=kind,
        schema=of["schema"],
        schema_file=of["schema.file"],
        subject=subject,
        message=of["message"],
        flat=of["columns"] == "flat",
        prefix=of["prefix"],
        framed=has_registry if of["framing"] is None else of["framing"] == "confluent",
    )


_SIDE_NAMES = tuple(option.name.removeprefix("key.") for option in _side_options("key"))


def _registry(values: Mapping[str, Value]) -> RegistrySettings | None:
    urls = values["schema.registry.url"]
    assert isinstance(urls, list)
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"schema.registry.url={url!r} is no address; write http://host:port or https://host:port")
        if parts.username is not None:
            raise ConfigError("schema.registry.url must not hold a password: set schema.registry.basic.auth.user.info")
    if not urls:
        return None
    read: dict[str, Any] = dict(values)
    user_info = read["schema.registry.basic.auth.user.info"]
    if user_info is not None and ":" not in user_info:
        raise ConfigError("schema.registry.basic.auth.user.info must be user:password")
    return RegistrySettings(
        urls=tuple(url.rstrip("/") for url in urls),
        user_info=user_info,
        ca_location=read["schema.registry.ssl.ca.location"],
        timeout_s=read["schema.registry.timeout.ms"] / 1000,
    )
