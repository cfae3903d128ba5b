"""Errors of the benchmark."""

from __future__ import annotations


class BenchFailed(Exception):
    """A measurement failed; the text says why."""


class CannotRun(BenchFailed):
    """A line cannot run on this machine; the other lines still can."""
