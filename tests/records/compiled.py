"""Compiled modules for tests that compare them with their fallbacks: a missing module skips the test, but fails it in CI."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest


def compiled(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"headrace.records.{name}")
    except ImportError as error:
        reason = f"headrace.records.{name} is not built: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
