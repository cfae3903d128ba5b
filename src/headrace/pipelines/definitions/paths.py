"""Paths as they stand in a definition: relative ones begin at the folder of the file."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # s3a://…, file:/…: another file system's


def complete(text: str, folder: Path) -> str:
    return text if _SCHEME.match(text) else os.path.normpath(folder / text)
