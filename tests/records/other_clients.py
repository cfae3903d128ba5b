"""Batch readers and writers of other clients; importing kafka-python raises a warning, which is an error in these tests."""

from __future__ import annotations

import warnings

from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as PythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as PythonBuilder
    from kafka.record.legacy_records import LegacyRecordBatchBuilder as PythonLegacyBuilder

__all__ = ["AioBatch", "AioBuilder", "PythonBatch", "PythonBuilder", "PythonLegacyBuilder"]
