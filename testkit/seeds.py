"""Ranges of seeds on the command line."""

from __future__ import annotations


def seed_range(text: str) -> range:
    """Parse FIRST-LAST, or a single seed."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
