"""Replaces an attribute of a class or a module for a while, to plant a fault in the product from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, replacement: object) -> Iterator[None]:
    """Replace an attribute that `owner` itself defines, and restore it in the end."""
    original = vars(owner)[name]
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)
