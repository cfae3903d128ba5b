"""Regular expressions from clients, matched by RE2: linear time, bounded memory, no backtracking.

A pattern must match the whole text, as with RE2/J and java.util.regex in Kafka.
"""

from __future__ import annotations

from typing import Any

PATTERN_CHARS_MAX = 1000
TEXT_CHARS_MAX = 512  # a longer text matches nothing
MEMORY_BYTES_MAX = 256 << 10  # memory of one pattern: its program and cached states


class BadPattern(ValueError):
    """An invalid pattern: the message is RE2's, or names the limit that the pattern exceeds."""


class Pattern:
    """A compiled pattern; creating one raises BadPattern if the text is invalid."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise BadPattern(f"pattern too large - {len(text)} characters; {PATTERN_CHARS_MAX} are allowed")
        import re2  # imported on first use: most nodes start without a pattern, and many never have one

        options = re2.Options()
        options.max_mem = MEMORY_BYTES_MAX
        options.log_errors = False  # RE2 would write errors to stderr
        options.never_capture = True  # captures are never read, and tracking them is most of RE2's cost
        try:
            self._compiled: Any = re2.compile(text.encode(), options=options)
        except UnicodeEncodeError:
            raise BadPattern("invalid UTF-8") from None
        except re2.error as error:
            raise BadPattern(error.args[0].decode(errors="replace")) from None
        re2.purge()  # the module's cache would keep 128 unused patterns alive
        self.size: int = self._compiled.programsize  # number of instructions: the maximum cost of one character

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        if len(text) > TEXT_CHARS_MAX:
            return False
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            return False  # the text has an unpaired surrogate
        return self._compiled.fullmatch(encoded) is not None
