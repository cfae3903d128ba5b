"""Reads a source from its definition: topic, files, table or format, each with its keys."""

from __future__ import annotations

from pathlib import Path

from headrace.pipelines.definitions.definition import BadRecords, Source, SourceKind, Watermark
from headrace.pipelines.definitions.fields import Fields, shown, suggestion
from headrace.pipelines.definitions.paths import complete
from headrace.pipelines.definitions.tree import Entries, Text

VALUE_FORMATS = ("raw", "string", "json", "avro", "protobuf")
FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "xml", "avro")
RECORD_COLUMNS = ("key", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_TOPIC_KEYS = ("batch", "key", "value", "schema", "metadata", "bad_records", "watermark", "options")
_KEYS = {
    "topic": ("topic", *_TOPIC_KEYS),
    "topic_pattern": ("topic_pattern", *_TOPIC_KEYS),
    "files": ("files", "format", "schema", "watermark", "options"),
    "table": ("table", "format", "schema", "options"),
    "format": ("format", "batch", "schema", "watermark", "options"),
}


def read_source(name: str, fields: Fields, folder: Path) -> Source:
    """Read as much of the source as possible, so that references to it are not reported too."""
    kind = fields.kind(_KEYS, qualifier="format")
    if kind is None:
        return Source(name=name, where=fields.where, kind=SourceKind.FORMAT, target="", is_stream=True)
    if kind in ("topic", "topic_pattern"):
        return _topic(name, fields, folder, is_pattern=kind == "topic_pattern")
    if kind == "table":
        return _table(name, fields, folder)
    schema, schema_file = _schema(fields, folder)
    is_files = kind == "files"
    target = fields.text("files") if is_files else ""
    format = fields.choice("format", FILE_FORMATS, "") if is_files else fields.text("format")
    if is_files:
        fields.require("format", f"one of {', '.join(FILE_FORMATS)}")
    if is_files and format not in ("text", "", None):
        fields.require("schema", 'columns such as "id bigint, at timestamp"')
    return Source(
        name=name,
        where=fields.where,
        kind=SourceKind(kind),
        target=complete(target, folder) if target else "",
        is_stream=not fields.boolean("batch"),
        format=format,
        schema=schema,
        schema_file=schema_file,
        watermark=read_watermark(fields),
        options=fields.mapping("options"),
    )


def _topic(name: str, fields: Fields, folder: Path, *, is_pattern: bool) -> Source:
    schema, schema_file = _schema(fields, folder)
    value = fields.choice("value", VALUE_FORMATS, "")
    if not value and "value" in fields:
        schema = schema_file = None  # a schema, but of an unknown format
    value = value or "raw"
    if (schema or schema_file) and value in ("raw", "string"):
        fields.wrong("schema", f"has no use with value: {value}; say what values are, for instance value: json")
    metadata = fields.texts("metadata") if "metadata" in fields else None
    for one in metadata or ():
        if one not in RECORD_COLUMNS:
            known = ", ".join(RECORD_COLUMNS)
            fields.wrong("metadata", f"{shown(one)} is none of {known}{suggestion(one, RECORD_COLUMNS)}")
    targets = fields.texts("topic_pattern" if is_pattern else "topic")
    return Source(
        name=name,
        where=fields.where,
        kind=SourceKind.TOPIC,
        target=",".join(targets),
        is_stream=not fields.boolean("batch"),
        is_pattern=is_pattern,
        key=fields.choice("key", VALUE_FORMATS, "raw"),
        value=value,
        schema=schema,
        schema_file=schema_file,
        metadata=metadata,
        bad_records=_bad_records(fields),
        watermark=read_watermark(fields),
        options=fields.mapping("options"),
    )


def _table(name: str, fields: Fields, folder: Path) -> Source:
    """Read a table: files in a folder if there is a format, else a table of Spark's catalog."""
    target = fields.text("table") or ""
    format = fields.choice("format", FILE_FORMATS, "") if "format" in fields else None
    schema, schema_file = _schema(fields, folder)
    if "/" in target:
        fields.require("format", f"one of {', '.join(FILE_FORMATS)}")
    return Source(
        name=name,
        where=fields.where,
        kind=SourceKind.TABLE,
        target=target if format is None or not target else complete(target, folder),
        is_stream=False,
        format=format,
        schema=schema,
        schema_file=schema_file,
        options=fields.mapping("options"),
    )


def _schema(fields: Fields, folder: Path) -> tuple[str | None, str | None]:
    """Return the schema as text, or the path of its file."""
    node = fields.node("schema")
    if not isinstance(node, Entries):
        return fields.text("schema"), None
    inner = Fields(node, fields.problems, "schema")
    inner.only(("file",))
    file = inner.needed("file", "the path of a file with the schema")
    return None, None if file is None else complete(file, folder)


def _bad_records(fields: Fields) -> BadRecords:
    """Read bad_records; YAML's `null` value counts as the text "null"."""
    node = fields.node("bad_records")
    if isinstance(node, Entries):
        inner = Fields(node, fields.problems, "bad_records")
        inner.only(("dead_letter",))
        return BadRecords("deadletter", inner.needed("dead_letter", "the topic for records that cannot be decoded"))
    if isinstance(node, Text) and node.value in ("null", "skip"):
        return BadRecords(node.value)
    text = fields.text("bad_records")
    if text not in (None, "fail"):
        fields.wrong("bad_records", f"{shown(str(text))} is none of fail, skip, null, {{dead_letter: topic}}")
    return BadRecords()


def read_watermark(fields: Fields) -> Watermark | None:
    node = fields.node("watermark")
    if node is None:
        return None
    inner = Fields(node, fields.problems, "watermark")
    inner.only(("column", "delay"))
    column = inner.needed("column", "the column with the time of the event")
    inner.require("delay", "how late events may come, such as 10 seconds")
    delay = inner.duration("delay")
    return Watermark(column or "", delay or "")
