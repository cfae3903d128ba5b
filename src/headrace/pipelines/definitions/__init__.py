"""Pipeline definitions: loaded from YAML or Python, checked, built for a SparkSession, and shown as text."""

from __future__ import annotations

from headrace.pipelines.definitions.building import Built, build
from headrace.pipelines.definitions.checks import check
from headrace.pipelines.definitions.definition import (
    BadRecords,
    DefinitionError,
    Pipeline,
    Place,
    Problem,
    Sink,
    SinkKind,
    Source,
    SourceKind,
    SparkSettings,
    Step,
    StepKind,
    Trigger,
    TriggerKind,
    Watermark,
)
from headrace.pipelines.definitions.loading import load
from headrace.pipelines.definitions.plan_text import plan
from headrace.pipelines.definitions.python.files import pipeline

__all__ = [
    "BadRecords",
    "Built",
    "DefinitionError",
    "Pipeline",
    "Place",
    "Problem",
    "Sink",
    "SinkKind",
    "Source",
    "SourceKind",
    "SparkSettings",
    "Step",
    "StepKind",
    "Trigger",
    "TriggerKind",
    "Watermark",
    "build",
    "check",
    "load",
    "pipeline",
    "plan",
]
