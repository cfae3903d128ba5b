"""Writes the API reference to docs/reference; `--check` only compares, and exits with 1 if a file differs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.reference.markdown import render
from tools.reference.pages import PAGES, Page
from tools.reference.sources import Sources

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
FOLDER = ROOT / "docs" / "reference"


def write(folder: Path, texts: dict[str, str]) -> list[str]:
    """Write the files that differ and return their names."""
    changed = differing(folder, texts)
    folder.mkdir(parents=True, exist_ok=True)
    for name in changed:
        (folder / name).write_text(texts[name], encoding="utf-8")
    return changed


def differing(folder: Path, texts: dict[str, str]) -> list[str]:
    """Return the names of the files that are missing or have another text."""
    return [
        name
        for name, text in texts.items()
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text
    ]


def rendered(pages: Sequence[Page] = PAGES) -> dict[str, str]:
    """Return the texts of all pages by file name."""
    sources = Sources(SOURCES)
    return {page.file: render(sources, page) for page in pages}


def main(arguments: Sequence[str] | None = None, folder: Path = FOLDER) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args(arguments)
    if not options.check:
        for name in write(folder, rendered()):
            print(f"wrote {folder / name}")
        return 0
    wrong = differing(folder, rendered())
    for name in wrong:
        print(f"{folder / name} differs from the docstrings: run `make docs`", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
