"""Reads a sink from its definition: topic, files (Parquet and others), console or format, each with its keys."""

from __future__ import annotations

from pathlib import Path

from headrace.pipelines.definitions.definition import Sink, SinkKind, Trigger, TriggerKind
from headrace.pipelines.definitions.durations import EXPECTED, duration
from headrace.pipelines.definitions.fields import Fields, shown, suggestion
from headrace.pipelines.definitions.paths import complete
from headrace.pipelines.definitions.source_parts import FILE_FORMATS

MODES = ("append", "update", "complete", "overwrite")
_ALL = ("from", "mode", "trigger", "options")
_TOPIC = ("key", "value", "headers", "timestamp")
_KEYS = {
    "topic": ("topic", *_TOPIC, *_ALL),
    "topic_expression": ("topic_expression", *_TOPIC, *_ALL),
    "parquet": ("parquet", "partition_by", *_ALL),
    "files": ("files", "format", "partition_by", *_ALL),
    "console": ("console", *_ALL),
    "format": ("format", "partition_by", *_ALL),
}
_REAL_TIME = ("continuous", "real-time", "realtime")


def read_sink(name: str, fields: Fields, folder: Path) -> Sink | None:
    kind = fields.kind(_KEYS, qualifier="format")
    if kind is None:
        return None
    source = fields.needed("from", "the step or source that it writes")
    if kind == "console" and not fields.boolean("console"):
        fields.wrong("console", "true is expected")
    target = fields.text(kind) if kind in ("topic", "parquet", "files") else None
    if kind in ("parquet", "files") and target is not None:
        target = complete(target, folder)
    return Sink(
        name=name,
        where=fields.where,
        kind=_kind(kind),
        source=source or "",
        target=target or "",
        format=_format(kind, fields),
        mode=fields.choice("mode", MODES, "append"),
        key=fields.text("key", fill=False),
        value=fields.text("value", fill=False) or "json",
        topic_expression=fields.text("topic_expression", fill=False),
        timestamp=fields.text("timestamp", fill=False),
        headers=fields.mapping("headers"),
        partition_by=fields.texts("partition_by"),
        trigger=read_trigger(fields),
        options=fields.mapping("options"),
    )


def _kind(key: str) -> SinkKind:
    return {"topic_expression": SinkKind.TOPIC, "parquet": SinkKind.FILES}.get(key) or SinkKind(key)


def _format(kind: str, fields: Fields) -> str | None:
    if kind == "parquet":
        return kind
    if kind == "format":
        return fields.text("format")
    if kind == "files":
        fields.require("format", f"one of {', '.join(FILE_FORMATS)}")
        return fields.choice("format", FILE_FORMATS, "parquet")
    return None


def read_trigger(fields: Fields) -> Trigger | None:
    text = fields.text("trigger")
    if text is None:
        return None
    trigger = trigger_of(text)
    if trigger is None:
        why = " (Spark's real-time and continuous modes need a source in the JVM)" if text in _REAL_TIME else ""
        near = suggestion(text, [TriggerKind.AVAILABLE_NOW.value])
        fields.wrong("trigger", f"{shown(text)} is neither {EXPECTED}, nor available-now{near}{why}")
    return trigger


def trigger_of(text: str) -> Trigger | None:
    if text.strip() == TriggerKind.AVAILABLE_NOW.value:
        return Trigger(TriggerKind.AVAILABLE_NOW)
    interval = duration(text)
    return None if interval is None else Trigger(TriggerKind.INTERVAL, interval)
