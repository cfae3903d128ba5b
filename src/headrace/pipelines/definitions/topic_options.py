"""The options for reading and writing topics: the pipeline's settings, those implied by keys, and those of the source or sink.

Settings apply to sources and sinks alike; each uses those that it supports. For example, a sink ignores a schema registry.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.base.errors import ConfigError
from headrace.client.consumer.options import CONSUMER_OPTIONS
from headrace.client.producer.options import PRODUCER_OPTIONS
from headrace.pipelines.definitions.definition import BadRecords, Pipeline, Sink, Source
from headrace.pipelines.definitions.fields import suggestion
from headrace.pipelines.schemas.options import ERROR_COLUMN
from headrace.pipelines.sink.options import SINK_OPTIONS, parse_sink_options
from headrace.pipelines.source.options import COLUMNS, SOURCE_OPTIONS, Mode, parse_options

KAFKA = "kafka."
REGISTRY = "schema.registry."
# Temporary prefix of a value's fields, because a field may have the name of a column of the record.
FLAT_PREFIX = "__"
_HAS_FIELDS = ("json", "avro", "protobuf")
_OWN_CHOICE = frozenset({"columns", "value.columns", "value.prefix"})

_SOURCE_NAMES = {name.lower(): name for name in (*SOURCE_OPTIONS, *(KAFKA + one for one in CONSUMER_OPTIONS))}
_SINK_NAMES = {name.lower(): name for name in (*SINK_OPTIONS, *(KAFKA + one for one in PRODUCER_OPTIONS))}

# Defaults of a pipeline: read from the beginning, and of transactions only committed records.
STREAM_DEFAULTS = {"startingOffsets": "earliest"}
SOURCE_DEFAULTS = {"kafka.isolation.level": "read_committed"}
_STARTING = ("startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp")


def unknown_setting(name: str) -> str | None:
    if name.lower() in _SOURCE_NAMES or name.lower() in _SINK_NAMES:
        return None
    near = suggestion(name, {**_SOURCE_NAMES, **_SINK_NAMES}.values())
    return f"{name} is no option of topics, of sources or of sinks{near}"


def has_fields(source: Source) -> bool:
    """Return whether the fields of the value become columns; options that choose columns take precedence."""
    return source.value in _HAS_FIELDS and _OWN_CHOICE.isdisjoint(name.lower() for name in source.options)


def record_columns(source: Source) -> tuple[str, ...]:
    """Return the columns of the record to read in addition to the value's."""
    if source.metadata is not None:
        return source.metadata
    if source.value in _HAS_FIELDS:
        return () if source.key == "raw" else ("key",)
    return tuple(name for name in COLUMNS if name != "value")


def source_options(pipeline: Pipeline, source: Source, bad_records: BadRecords | None = None) -> dict[str, str]:
    """Return the options of a topic source; `bad_records` overrides the source's own."""
    bad_records = bad_records or source.bad_records
    options = {**SOURCE_DEFAULTS, **_known(pipeline.settings, _SOURCE_NAMES)}
    if source.schema is not None or source.schema_file is not None:
        # With a registry, values would be expected to start with a schema id.
        options = {name: text for name, text in options.items() if not name.startswith(REGISTRY)}
    given = {name.lower() for name in (*options, *source.options)}
    if source.is_stream and given.isdisjoint(_STARTING):
        options |= STREAM_DEFAULTS
    options["subscribePattern" if source.is_pattern else "subscribe"] = source.target
    if source.key != "raw":
        options["key.format"] = source.key
    if source.value != "raw":
        options["value.format"] = source.value
    if source.schema is not None:
        options["value.schema"] = source.schema
    if source.schema_file is not None:
        options["value.schema.file"] = source.schema_file
    if bad_records.action != "fail":
        options["onBadRecord"] = bad_records.action
    if bad_records.dead_letter is not None:
        options["deadletter.topic"] = bad_records.dead_letter
    if has_fields(source):
        options |= {"value.columns": "flat", "value.prefix": FLAT_PREFIX}
    if _OWN_CHOICE.isdisjoint(name.lower() for name in source.options):
        requested = [*(["value"] if "value" not in record_columns(source) else []), *record_columns(source)]
        if bad_records.action == "null":
            requested.append(ERROR_COLUMN)
        options["columns"] = ",".join(requested)
    return {**_without(options, source.options), **source.options}


def sink_options(pipeline: Pipeline, sink: Sink) -> dict[str, str]:
    options = _known(pipeline.settings, _SINK_NAMES)
    if sink.target:
        options["topic"] = sink.target
    return {**_without(options, sink.options), **sink.options}


def source_problems(pipeline: Pipeline, source: Source) -> list[str]:
    found = [_schema_problem(source)]
    try:
        parse_options(source_options(pipeline, source), Mode.STREAM if source.is_stream else Mode.BATCH)
    except ConfigError as error:
        found.append(str(error))
    return [one for one in found if one is not None]


def sink_problem(pipeline: Pipeline, sink: Sink) -> str | None:
    try:
        parse_sink_options(sink_options(pipeline, sink))
    except ConfigError as error:
        return str(error)
    return None


def _schema_problem(source: Source) -> str | None:
    """Return what is wrong with an inline DDL schema; a registry is queried only when the pipeline is built."""
    if source.value != "json" or source.schema is None or source.schema.lstrip().startswith("{"):
        return None
    from headrace.pipelines.schemas.columns import BadSchema
    from headrace.pipelines.schemas.spark_types import types_from_ddl

    try:
        types_from_ddl(source.schema)
    except BadSchema as error:
        return f"schema: {error}"
    return None


def _known(settings: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {names[name.lower()]: text for name, text in settings.items() if name.lower() in names}


def _without(options: Mapping[str, str], instead: Mapping[str, str]) -> dict[str, str]:
    """Return the options without those overridden by `instead`; option names are case-insensitive."""
    lower = {name.lower() for name in instead}
    return {name: text for name, text in options.items() if name.lower() not in lower}
