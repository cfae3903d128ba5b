"""Reads Parquet tables that a Spark query writes; the log in `_spark_metadata` lists the files of a table.

Each batch adds one file to that log atomically; now and then a file such as `9.compact` also contains all earlier ones. Parquet files
that the log does not list were left by killed attempts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.base.errors import CorruptData

LOG = "_spark_metadata"
FORMAT = "v1"
_COMPACT = ".compact"


def files_of(table: Path) -> list[Path]:
    """Return the files of the table in the order of its batches."""
    log = table / LOG
    if not log.is_dir():
        return []
    batches = sorted(int(one.name) for one in log.iterdir() if one.name.isdigit())
    compacted = [int(one.name.removesuffix(_COMPACT)) for one in log.glob(f"[0-9]*{_COMPACT}")]
    names = [str(batch) for batch in batches]
    if compacted:
        names = [f"{max(compacted)}{_COMPACT}", *(str(batch) for batch in batches if batch > max(compacted))]
    files: dict[Path, None] = {}
    for name in names:
        for path, is_added in _entries(log / name, table):
            if is_added:
                files[path] = None
            else:
                files.pop(path, None)
    return list(files)


def left_over(table: Path) -> int:
    """Return the number of Parquet files in the directory that are not part of the table."""
    there = set(files_of(table))
    return sum(1 for path in table.glob("*.parquet") if path not in there)


def rows_of(table: Path) -> Iterator[dict[str, Any]]:
    """Yield all rows of the table; times are datetimes in UTC."""
    import pyarrow.parquet as parquet

    for path in files_of(table):
        for batch in parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()


def _entries(path: Path, table: Path) -> Iterator[tuple[Path, bool]]:
    form, _, text = path.read_text().partition("\n")
    if form != FORMAT:
        raise CorruptData(f"{path}: its format is {form[:20]!r}; {FORMAT} is known")
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            name = Path(unquote(urlsplit(entry["path"]).path)).name
            # Only the name is used, because the directory may have been moved. The tables are not partitioned.
            yield table / name, entry.get("action", "add") != "delete"
        except (ValueError, LookupError, TypeError) as error:
            raise CorruptData(f"{path} cannot be read: {error}") from error
