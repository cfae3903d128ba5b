"""Folders of the benchmark."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent  # the repository
WORK = ROOT / ".work" / "bench"
