"""Reduces Spark's analysis errors to one line, and finds the line of the query that they refer to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.pipelines.definitions.definition import Place

_STATE = re.compile(r"\s*SQLSTATE: \w+")
_OUR_OWN = re.compile(r"^(?:headrace\.[\w.]+\.)?(?:SourceError|ConfigError): (.+)$", re.MULTILINE)
_AT = re.compile(r"\bline (\d+),? pos(?:ition)? \d+")
TEXT_CHARACTERS_MAX = 400


def spark_message(error: Exception) -> str:
    """Return the message without the plan, the SQLSTATE and the stack traces of two languages."""
    text = str(error)
    own = _OUR_OWN.findall(text)
    if own:
        return str(own[-1]).strip()
    text = _STATE.split(text.strip(), maxsplit=1)[0]
    line = " ".join(text.split("\n\n", 1)[0].split()).rstrip(" ;")
    return line if len(line) <= TEXT_CHARACTERS_MAX else line[: TEXT_CHARACTERS_MAX - 1] + "…"


def location_in_query(error: Exception, first_line: Place) -> Place:
    """Return the location in the file; Spark numbers the lines of the query from 1."""
    from headrace.pipelines.definitions.definition import Place

    found = _AT.search(str(error))
    return Place(first_line.file, first_line.line + int(found[1]) - 1) if found else first_line
