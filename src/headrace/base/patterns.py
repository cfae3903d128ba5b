"""Regular expressions that come over the wire, in RE2's language: time linear in the text, memory bounded, nothing backtracks.

A pattern must match the whole text, as with RE2/J and java.util.regex in Kafka.
"""

from __future__ import annotations

from typing import Any

PATTERN_CHARS_MAX = 1000
TEXT_CHARS_MAX = 512  # a longer text matches nothing
MEMORY_BYTES_MAX = 256 << 10  # of one pattern: program, and states that are remembered


class BadPattern(ValueError):
    """Says in RE2's words what is wrong with a pattern, or which limit it passes."""


class Pattern:
    """Compiled; raises BadPattern."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise BadPattern(f"pattern too large - {len(text)} characters; {PATTERN_CHARS_MAX} are allowed")
        import re2  # not before there is a pattern: most nodes start, and many live, without one

        options = re2.Options()
        options.max_mem = MEMORY_BYTES_MAX
        options.log_errors = False  # it would write to stderr
        options.never_capture = True  # groups are only for reading; following them is what takes RE2 the most time
        try:
            self._compiled: Any = re2.compile(text.encode(), options=options)
        except UnicodeEncodeError:
            raise BadPattern("invalid UTF-8") from None
        except re2.error as error:
            raise BadPattern(error.args[0].decode(errors="replace")) from None
        re2.purge()  # its cache would keep 128 patterns alive that nobody uses any more
        self.size: int = self._compiled.programsize  # instructions: what one character costs at the very most

    def matches(self, text: str) -> bool:
        """The whole of it."""
        if len(text) > TEXT_CHARS_MAX:
            return False
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            return False  # half of a surrogate pair
        return self._compiled.fullmatch(encoded) is not None
