"""The texts of operating system errors, for messages to users."""

from __future__ import annotations

import os
import re

_NUMBER = re.compile(r"\[Errno (\d+)\]")


def system_error_text(error: Exception) -> str:
    """Return the system's text of an OSError, without number, path or address; for another exception, its own text.

    If no address of a host accepts a connection, asyncio joins the texts of all errors into one that has no number.
    """
    if not isinstance(error, OSError):
        return str(error)
    numbers = {error.errno} if error.errno is not None else {int(one) for one in _NUMBER.findall(str(error))}
    number = numbers.pop() if len(numbers) == 1 else 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)
