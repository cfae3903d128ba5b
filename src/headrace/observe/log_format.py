"""Log lines that no client can forge.

Client ids, topic names, users and error messages reach the log as arguments of log calls. They are escaped here, where every record
is formatted, so that no log call has to do it.
"""

from __future__ import annotations

import logging
import re

LINE_FORMAT = "%(asctime)s %(levelname)s %(message)s (%(name)s)"
CONTINUATION = "    "  # prefix of every traceback line, so that only the first line of a record starts with its time
# Control characters, line and paragraph separators, characters that change the text direction, and lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escape(text: str) -> str:
    """Return the text on one line, with characters that terminals or line readers interpret as `\\xNN` or `\\uNNNN`."""
    return _UNSAFE.sub(_escape_one, text)


def _escape_one(match: re.Match[str]) -> str:
    code = ord(match[0])
    short = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


class LineFormatter(logging.Formatter):
    """One line per record; a traceback follows on indented lines."""

    def __init__(self, format: str = LINE_FORMAT, time_format: str | None = None) -> None:
        super().__init__(format, time_format)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escape(super().formatMessage(record))

    def formatException(self, ei: logging._SysExcInfoType) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(CONTINUATION + escape(line) for line in text.split("\n"))


def log_to_stderr(level: str, formatter: logging.Formatter) -> None:
    """Log all records of this process at `level` or above to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler])
