"""Reads a query's position from its checkpoint; what Spark writes there after each batch survives any kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import TopicPartition
from headrace.pipelines.source.offsets import read_offset

FORMATS = ("v1",)


class Position(NamedTuple):
    batch: int
    watermark_ms: int  # watermark of this batch: all windows that end before it have been written
    offsets: dict[TopicPartition, int]  # next offsets to read


NOWHERE = Position(-1, 0, {})


def position(checkpoint: Path) -> Position:
    """Return the position after the last complete batch, or `NOWHERE`; raise CorruptData if it cannot be read."""
    done = _newest(checkpoint / "commits")
    if done is None:
        return NOWHERE
    path = checkpoint / "offsets" / str(done)
    try:
        return parse_offsets(done, path.read_text())
    except FileNotFoundError:
        return NOWHERE  # Spark has just deleted it
    except (ValueError, LookupError, HeadraceError) as error:
        raise CorruptData(f"{path} cannot be read: {error}") from error


def parse_offsets(batch: int, text: str) -> Position:
    form, head, *sources = text.splitlines()
    if form not in FORMATS:
        raise ValueError(f"its format is {form[:20]!r}; {', '.join(FORMATS)} is known")
    offsets: dict[TopicPartition, int] = {}
    for source in sources:
        if source != "-":  # "-" means that nothing of the source has been read
            offsets |= read_offset(json.loads(source)).offsets
    return Position(batch, int(json.loads(head)["batchWatermarkMs"]), offsets)


def _newest(folder: Path) -> int | None:
    try:
        return max((int(one.name) for one in folder.iterdir() if one.name.isdigit()), default=None)
    except FileNotFoundError:
        return None
