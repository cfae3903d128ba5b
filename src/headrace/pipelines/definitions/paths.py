"""Paths in definitions: relative ones are relative to the folder of the file."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # a URL, such as s3a://… or file:/…


def complete(text: str, folder: Path) -> str:
    return text if _SCHEME.match(text) else os.path.normpath(folder / text)
